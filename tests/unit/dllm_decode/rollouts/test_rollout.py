"""A rollout as it is recorded, saved and read back."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dllm_decode import DecodeConfig, Rollout, Write, read_rollouts, save_rollouts

PARTS: dict[str, Any] = {
    "prompt": (7, 8), "template": (), "tokens": (1, 3, 9), "length": 4,
    "writes": (
        Write(0, 1, 2, -0.5, -0.25), Write(1, 0, 1, None, -3.0), Write(1, 3, 4, -0.1, -0.1),
        Write(2, 1, 49), Write(3, 1, 3, -0.7, -0.7), Write(3, 2, 9),
    ),
    "finish": "stop", "forwards": 4, "config": DecodeConfig(gen_length=3, top_k=2, temperature=0.5),
    "model": "tiny", "mask_id": 49, "weights": "a", "sampler": "Own()", "cache": "NoCache()",
    "verifier": "NoVerifier()", "blocks": "Sequential()",
}  # fmt: skip
ROLLOUT = Rollout(**PARTS)


def test_a_rollout_has_the_canvas_before_each_step_and_after_the_last() -> None:
    assert ROLLOUT.canvases().tolist() == [
        [7, 8, 49, 49, 49, 49],
        [7, 8, 49, 2, 49, 49],
        [7, 8, 1, 2, 49, 4],
        [7, 8, 1, 49, 49, 4],
        [7, 8, 1, 3, 9, 4],
    ]
    assert [write.position for write in ROLLOUT.commits] == [1, 0, 3, 1]


def test_rollouts_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    changed = msgspec.structs.replace(ROLLOUT, weights="b", forwards=5)
    save_rollouts(path, [ROLLOUT])
    save_rollouts(path, [changed])
    assert list(read_rollouts(path)) == [ROLLOUT, changed]
    assert len(path.read_text().splitlines()) == 2


def test_rollouts_are_appended_after_a_torn_line_and_after_one_without_a_line_end(
    tmp_path: Path,
) -> None:
    """The next rollout was written into the same line, so that both were lost."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(ROLLOUT.to_json())
    assert list(read_rollouts(path)) == [ROLLOUT]
    save_rollouts(path, [ROLLOUT])
    whole = path.read_text()
    path.write_text(whole + ROLLOUT.to_json()[:99])
    assert list(read_rollouts(path)) == [ROLLOUT] * 2
    save_rollouts(path, [ROLLOUT])
    assert path.read_text() == whole + f"{ROLLOUT.to_json()}\n"
    path.write_text("my notes")
    with pytest.raises(ValueError, match="must be new, or hold lines that begin with"):
        save_rollouts(path, [ROLLOUT])
    assert path.read_text() == "my notes"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "^Line 2 of .* must be a rollout"),
        (ROLLOUT.to_json().replace('"forwards":4', '"forwards":"4"'), "Expected `int`, got `str`"),
        (ROLLOUT.to_json().replace('"gen_length":3', '"gen_length":0'), "gen_length must be"),
        (ROLLOUT.to_json().replace('"finish"', '"ended"'), "unknown field `ended`"),
        (ROLLOUT.to_json().replace('"tokens":[1,3,9]', '"tokens":[1,2,9]'), "end in its tokens"),
    ],
)
def test_a_line_that_is_no_rollout_is_refused_by_its_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{ROLLOUT.to_json()}\n{line}\n")
    with pytest.raises(ValueError, match=reason):
        list(read_rollouts(path))


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ((Write(1, 0, 1), Write(0, 1, 3)), r"must begin with 0 and ascend, got \[1, 0\]"),
        ((Write(-1, 0, 1),), "must begin with 0"),
        ((Write(0, 4, 1),), r"must be in \[0, 4\), got 4"),
        ((*PARTS["writes"], Write(4, 0, 2)), "got 1 at position 0, where 2 is written last"),
    ],
)
def test_steps_that_do_not_belong_to_the_tokens_are_refused(
    writes: tuple[Write, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Rollout(**PARTS | {"writes": writes})

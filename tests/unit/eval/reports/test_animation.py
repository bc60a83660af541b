"""A replay as an animated picture."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_runs
import pytest
from eval_runs import SETTINGS, record
from PIL import Image

from dllm_decode import DecodeConfig
from eval.commands import evaluate as main
from eval.reports.animation import draw_frame, num_rounds, tint, write_animation
from eval.reports.replay import Example, panels_of, parts_of
from eval.runs.runner import execute


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    folder = execute(eval_runs.runs(), tmp_path_factory.mktemp("results"))
    settings = {own.key(""): own for own in folder.settings()}
    records = folder.records()
    return [(settings[r["settings"]], r) for r in records if r["example"] == records[0]["example"]]


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp"])
def test_an_animation_has_a_picture_a_step(suffix: str, example: Example, tmp_path: Path) -> None:
    path = tmp_path / f"replay{suffix}"
    write_animation(example, path)
    with Image.open(path) as opened:
        # Equal neighbours may be stored as one.
        frames: Any = opened
        last = max(num_rounds(panel) for panel in panels_of(example))
        assert 2 <= frames.n_frames <= last + 1
        assert frames.size[0] == 820
        duration = 0
        for number in range(frames.n_frames):
            frames.seek(number)
            frames.load()
            duration += frames.info["duration"]
    assert duration == pytest.approx(10_000, rel=0.1)


def test_pictures_show_what_was_committed_and_have_one_size(example: Example) -> None:
    panels = panels_of(example)
    last = max(num_rounds(panel) for panel in panels)
    pictures = [draw_frame("why?", panels, step) for step in range(last + 1)]
    assert len({picture.size for picture in pictures}) == 1
    assert len({picture.tobytes() for picture in pictures}) == last + 1
    dark = tint(0.0)
    assert dark not in {colour for _, colour in pictures[0].getcolors(1 << 20)}
    assert dark in {colour for _, colour in pictures[-1].getcolors(1 << 20)}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": "other"}, ["model toy", "model other"]),
        ({"decoding": DecodeConfig(gen_length=16, block_length=4, temperature=1.0)},
         ["gen_length 8", "gen_length 16"]),
        ({"decoding": DecodeConfig(gen_length=8, block_length=4, temperature=1.0, seed=2)},
         ["seed 0", "seed 2"]),
    ],
)  # fmt: skip
def test_panels_are_named_by_what_tells_them_apart(
    change: dict[str, Any], names: list[str]
) -> None:
    """Seeds were, but two models or two lengths had one name."""
    settings = [SETTINGS, replace(SETTINGS, **change)]
    parts = parts_of([(one, record(one, "a", 1)) for one in settings])
    assert parts == [[SETTINGS.sampler, name] for name in names]


def test_what_cannot_be_drawn_is_refused(example: Example, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in .gif, .png, .webp, got 'a.mp4'"):
        write_animation(example, tmp_path / "a.mp4")
    untraced = [(settings, record | {"trace": None}) for settings, record in example]
    with pytest.raises(ValueError, match="needs records with traces"):
        write_animation(untraced, tmp_path / "a.gif")


def test_a_command_animates_an_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = execute(eval_runs.runs(task="lists/shuffle?n=4&limit=2"), tmp_path / "results")
    example = folder.records()[-1]["example"]
    gif = ["--gif", str(tmp_path / "a.gif")]
    assert main(["trace", str(folder.path), "--example", example[:9], *gif]) == 0
    assert "Animation: " in capsys.readouterr().out
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.format == "GIF"
    before = ["--before", str(folder.path), "--replays", "0", "--cost", "seconds"]
    assert main(["report", str(folder.path), *before]) == 0
    assert "Comparison: " in capsys.readouterr().out
    assert '"cost":"seconds"' in (folder.path / "comparison.html").read_text()

"""Tasks that are read from files or from the hub: what is read, chosen and refused."""

import gzip
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from eval_runs import write_lines

from eval.tasks import Gsm8k


def row(i: int) -> dict[str, Any]:
    return {"question": f"How much is {i} and {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"}


def of(path: str | Path) -> Gsm8k:
    return Gsm8k(str(path), num_fewshot=0)


def test_a_file_a_folder_an_archive_and_a_list_give_the_same(tmp_path: Path) -> None:
    # JSON text may hold U+2028 unescaped; it must not split a row in two.
    rows = row(11) | {"more": "one\u2028two"}, "", row(12)
    path = Path(write_lines(tmp_path / "test.jsonl", *rows))
    expected = of(path).examples()
    assert len(expected) == 2
    assert of(tmp_path).examples() == expected
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert of(packed).examples() == expected
    packed.with_suffix(".json").write_text(json.dumps([row(11), row(12)], indent=1))
    assert of(packed.with_suffix(".json")).examples() == expected


def test_examples_are_the_first_or_drawn(tmp_path: Path) -> None:
    task = of(write_lines(tmp_path / "test.jsonl", *map(row, range(11, 17))))
    every = task.examples()
    assert task.examples(num_examples=3) == every[:3]
    drawn = task.examples(num_examples=3, seed=4)
    assert drawn == task.examples(num_examples=3, seed=4) != every[:3]
    assert all(example in every for example in drawn)
    with pytest.raises(ValueError, match=r"limit must be at most 6, .* got 7"):
        task.examples(num_examples=7)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"question": ', "be JSON, got: .*; repair or remove it"),
        ("[1]", "be in its official form: expected object, got array"),
        ({"question": None}, "have 'question' in its official form: expected str, got null"),
        ({"answer": "b"}, "have 'answer' .* expected str matching regex '#### .*'"),
    ],
)
def test_a_bad_row_is_named(bad: Any, message: str, tmp_path: Path) -> None:
    bad = bad if isinstance(bad, str) else {**row(11), **bad}
    with pytest.raises(ValueError, match=rf"^Line 2 of .* must .*{message}"):
        of(write_lines(tmp_path / "test.jsonl", row(12), bad)).examples()


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    for split in ("test", "train"):
        with pytest.raises(ValueError, match=rf"{split}\.jsonl, got no such file; download test"):
            of(tmp_path).examples(split)
    file = tmp_path / "test.jsonl.gz"
    for content in (gzip.compress(json.dumps(row(1)).encode())[:-20], b"plain text"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"with \.gz compressed, got: .*; repair it or downl"):
            of(file).examples()
    for text, message in (("", "got none; repair"), ("[{", "trunc"), ("[1]", "got `int` - at")):
        with pytest.raises(ValueError, match=message):
            of(write_lines(tmp_path / "test.jsonl", text)).examples()


def test_the_hub_is_asked_for_the_split_and_its_rows_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[tuple[str, str | None, str]] = []

    def load(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        calls.append((name, config, split))
        return [row(n) for n in ((2, 3) if split == "train" else (511,))]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    prompt = str(Gsm8k(num_fewshot=1).examples()[0].prompt)
    assert prompt.count("How much is") == 2
    assert "How much is 511 and 511?" in prompt
    assert calls == [("openai/gsm8k", "main", split) for split in ("test", "train")]


def test_a_missing_hub_or_package_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def not_cached(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Offline mode is enabled.")

    remedy = r"give path=, a folder with test\.jsonl and train\.jsonl from https"
    monkeypatch.setattr(datasets, "load_dataset", not_cached)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=f"got: Offline mode .* HF_HUB_OFFLINE=1 if .*, or {remedy}"
    ):
        Gsm8k().examples()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=f"got none; install the extra `eval`, or {remedy}"):
        Gsm8k().examples()


def test_a_hub_out_of_reach_is_named_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 90 s of retries, and then said that the package must be installed."""
    datasets = pytest.importorskip("datasets")
    with socket.socket() as taken:
        # Bound and not listening: the connection is refused.
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("was asked"))
        with pytest.raises(ValueError, match=f"in reach at {address} .*refused.*HF_HUB_OFFLINE=1"):
            Gsm8k().examples()

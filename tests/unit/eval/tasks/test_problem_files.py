"""Tasks that are read from files or from the hub: what is read, chosen and refused."""

import gzip
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eval_runs import write_lines

from eval.tasks import Gsm8k, HumanEval, Mbpp
from eval.tasks.problem_files import FileTask


def sums(i: int) -> dict[str, Any]:
    return {"question": f"How much is {i} and {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"}


def function(i: int) -> dict[str, Any]:
    return {
        "task_id": f"Own/{i}", "prompt": "def f():\n", "canonical_solution": "    return 1\n",
        "test": "def check(f): assert f()\n", "entry_point": "f",
    }  # fmt: skip


def chore(i: int) -> dict[str, Any]:
    return {"task_id": i, "text": "Write f.", "code": "def f(): return 1", "test_list": ["f()"]}


TASKS: dict[str, tuple[Callable[[str | None], FileTask], str, Callable[[int], dict[str, Any]]]] = {
    "gsm8k": (lambda path: Gsm8k(path, num_fewshot=0), "test.jsonl", sums),
    "humaneval": (HumanEval, "HumanEval.jsonl", function),
    "mbpp": (lambda path: Mbpp(path, num_fewshot=0), "mbpp.jsonl", chore),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_file_a_folder_an_archive_and_a_list_give_the_same(name: str, tmp_path: Path) -> None:
    make, file, row = TASKS[name]
    # JSON text may hold U+2028 unescaped; it must not split a row in two.
    path = Path(write_lines(tmp_path / file, row(11) | {"more": "one\u2028two"}, "", row(12)))
    expected = make(str(path)).examples()
    assert len(expected) == 2
    assert make(str(tmp_path)).examples() == expected
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert make(str(packed)).examples() == expected
    packed.with_suffix(".json").write_text(json.dumps([row(11), row(12)], indent=1))
    assert make(str(packed.with_suffix(".json"))).examples() == expected


@pytest.mark.parametrize("name", TASKS)
def test_examples_are_the_first_or_drawn(name: str, tmp_path: Path) -> None:
    make, file, row = TASKS[name]
    task = make(write_lines(tmp_path / file, *map(row, range(11, 17))))
    every = task.examples()
    assert task.examples(num_examples=3) == every[:3]
    drawn = task.examples(num_examples=3, seed=4)
    assert drawn == task.examples(num_examples=3, seed=4) != every[:3]
    assert all(example in every for example in drawn)
    with pytest.raises(ValueError, match=r"limit must be at most 6, .* got 7"):
        task.examples(num_examples=7)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gsm8k", '{"question": ', "be JSON, got: .*; repair or remove it"),
        ("gsm8k", "[1]", "be in its official form: expected object, got array"),
        ("gsm8k", {"answer": "b"}, "have 'answer' .* expected str matching regex '#### .*'"),
        ("humaneval", {"test": None}, "have 'test' in its official form: expected str, got null"),
        ("mbpp", {"task_id": 975}, "have 'task_id' .* expected int <= 974"),
        ("mbpp", {"test_list": []}, "have 'test_list' .* expected array of length >= 1"),
    ],
)
def test_a_bad_row_is_named(name: str, changed: Any, message: str, tmp_path: Path) -> None:
    make, file, row = TASKS[name]
    bad = changed if isinstance(changed, str) else {**row(11), **changed}
    with pytest.raises(ValueError, match=rf"^Line 2 of .* must .*{message}"):
        make(write_lines(tmp_path / file, row(12), bad)).examples()


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got no such file; download HumanEval\.jsonl or"):
        HumanEval(str(tmp_path)).examples()
    with pytest.raises(ValueError, match=r"train\.jsonl, got no such file; download test\.jsonl"):
        Gsm8k(str(tmp_path)).examples("train")
    file = tmp_path / "HumanEval.jsonl.gz"
    for content in (gzip.compress(json.dumps(function(1)).encode())[:-20], b"plain text"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"with \.gz compressed, got: .*; repair it or downl"):
            HumanEval(str(file)).examples()
    for text, message in (("", "got none; repair"), ("[{", "trunc"), ("[1]", "got `int` - at")):
        with pytest.raises(ValueError, match=message):
            Mbpp(write_lines(tmp_path / "mbpp.jsonl", text)).examples()


def test_the_hub_is_asked_for_the_split_and_its_rows_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[tuple[str, str | None, str]] = []

    def load(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        calls.append((name, config, split))
        if name.startswith("openai"):
            return [function(1)]
        return [chore(n) for n in ((2, 3, 4) if split == "prompt" else (511,))]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert HumanEval().examples()[0].prompt == "def f():\n"
    assert len(Mbpp().examples("val")) == 1
    assert calls == [
        ("openai/openai_humaneval", None, "test"),
        ("google-research-datasets/mbpp", "full", "validation"),
        ("google-research-datasets/mbpp", "full", "prompt"),
    ]


@pytest.mark.parametrize("name", TASKS)
def test_a_missing_hub_or_package_has_a_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    make, file, _ = TASKS[name]

    def not_cached(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Offline mode is enabled.")

    remedy = f"give path=, a folder with {file}"
    monkeypatch.setattr(datasets, "load_dataset", not_cached)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=f"got: Offline mode .* HF_HUB_OFFLINE=1 if .*, or {remedy}"
    ):
        make(None).examples()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=f"got none; install the extra `eval`, or {remedy}"):
        make(None).examples()


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

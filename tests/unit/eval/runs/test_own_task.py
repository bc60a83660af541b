"""A task of the user's own: its mistakes are reported before anything is decoded."""

import sys
from pathlib import Path

import eval_runs
import pytest

from eval.reports.summary import summarise
from eval.runs.runner import execute
from eval.runs.task_addresses import parse_task
from eval.sweeps.sweep import Sweep

MODULE = """
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional
from eval.tasks import Example, Task

@dataclass(frozen=True)
class Lines(Task):
    path: Path
    limit_words: Optional[int] = None

    version = 1
    name = "lines"
    primary = "answer"
    gen_length = 8
    splits = ("test",)

    def examples(self, split="test", num_examples=None, seed=0):
        lines = self.path.read_text().splitlines()
        return [Example(line, line) for line in lines][:num_examples]

    def score(self, example, text):
        return {"answer": text == example.target, "words": 1}

# Tests check types, so that it cannot be given.
number = Example("what is 1 + 1 ?", "2", id="first")
object.__setattr__(number, "target", 2)

@dataclass
class Changeable(Task):
    version = gen_length = 1
    name = primary = "answer"
    examples, score = Lines.examples, Lines.score

class Misnamed(Lines):
    primary = "right"

class Incomplete(Task):
    name = "incomplete"
    primary = "answer"

@dataclass(frozen=True)
class Listed(Lines):
    words: list[str] = ()

@dataclass(frozen=True)
class Ordered(Lines):
    order: Literal["up", "down"] = "up"
    times: Literal[1, 2, "all"] | None = None
"""
ANSWERING = """
class {name}(Lines):
    def {method}:
        return {value}
"""
EXAMPLES = {
    "Numbers": "[number]",
    "Turnless": '[Example([{"role": "user"}], "2", id="first")]',
    "Bare": '["what is 1 + 1 ?"]',
    "Empty": "[]",
    "Twins": '[Example("what is 1 + 1 ?", "2"), Example("what is 1 + 1 ?", "2")]',
}
SCORES = {
    "Nothing": "1.0", "TooMuch": '{"answer": 2.0}', "Unlike": '{"answer": 0.0}',
    "Undefined": '{"answer": None}', "Worded": '{"answer": "1"}',
    "Raising": '{"answer": example.meta["gold"] == text}',
    "Parsing": '{"answer": text == example.target or eval(text + " (")}',
    "Worse": '{"answer": 1.0 if text == example.target else float("nan")}',
}  # fmt: skip


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    methods = {
        "score(self, example, text)": SCORES,
        'examples(self, split="test", num_examples=None, seed=0)': EXAMPLES,
    }
    classes = [
        ANSWERING.format(name=name, method=method, value=value)
        for method, values in methods.items()
        for name, value in values.items()
    ]
    graded = "\nclass Graded(Unlike):\n    scores_own_target = False\n"
    (tmp_path / "task_of_mine.py").write_text("".join([MODULE, *classes, graded]))
    (tmp_path / "lines.txt").write_text("emma has 3 apples .\nben has 4 apples .")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "task_of_mine", raising=False)
    monkeypatch.chdir(tmp_path)
    return "task_of_mine"


def select(address: str) -> None:
    Sweep(("mini",), (address,), ("FixedSchedule()",)).selections()


def test_truths_and_integers_are_scores(module: str, tmp_path: Path) -> None:
    """After the decode, the records could not be read: 'scores' of the type dict[str, int ...]."""
    address = f"{module}:Lines?path=lines.txt"
    select(address)
    folder = execute(eval_runs.runs(task=address)[:1], tmp_path / "out")
    assert [record["scores"] for record in folder.records()] == [{"answer": 0.0, "words": 1.0}] * 2
    assert summarise(folder).summary["rows"][0]["scores"]["words"] == 1.0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Nothing", r"must return a mapping such as \{'answer': 1.0\}, got 1.0"),
        ("Misnamed", "must return the primary score 'right' among others, got 'answer', 'words'"),
        ("TooMuch", r"Scores must be numbers in \[0, 1\], .* None, got 'answer': 2.0"),
        ("Unlike", r"own target must score 1 in 'answer', got 0.0 for the target 'emma .*'"),
        ("Undefined", r"own target must score 1 in 'answer', got None for the target 'emma .*'"),
        ("Worded", r"Scores must be numbers in .*, got 'answer': '1'.* the example '"),
        ("Raising", r"must not raise, got KeyError: 'gold' \(task_of_mine.py, line \d+\) for the "),
        ("Numbers", r"the target of the example 'first' must be text, got 2"),
        ("Turnless", r"the prompt of the example 'first' must be text, or .*, got \[{'role'"),
        ("Bare", r"each example must be an Example, got 'what is 1 \+ 1 \?' at 0"),
    ],
)
def test_wrong_scorers_and_examples_are_refused_first(module: str, kind: str, message: str) -> None:
    """After the decode, a KeyError, a TypeError or an unreadable results folder came of it."""
    with pytest.raises(ValueError, match=f"^{module}:{kind}.*: .*{message}"):
        select(f"{module}:{kind}?path=lines.txt")


def test_a_scorer_that_is_wrong_about_an_answer_has_an_error(module: str, tmp_path: Path) -> None:
    # A task may say that a target scores less.
    select(f"{module}:Graded?path=lines.txt")
    address = f"{module}:Worse?path=lines.txt"
    select(address)
    folder = execute(eval_runs.runs(task=address)[:1], tmp_path / "out")
    assert [record["error"] for record in folder.records()] == [
        "ValueError: Scores must be numbers in [0, 1], True, False or None, got 'answer': nan."
    ] * 2
    # The batch was lost, and the run ended in a traceback wherever it went on.
    folder = execute(eval_runs.runs(task=f"{module}:Parsing?path=lines.txt")[:1], tmp_path / "read")
    assert all(record["error"].startswith("SyntaxError: ") for record in folder.records())


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        # A path was said to be no whole number.
        ("Lines?path=a/b&limit_words=4", f"(path={Path('a/b')!r}, limit_words=4)"),
        ("Lines?path=a&limit_words=None", "limit_words=None)"),
        ("Ordered?path=a&order=down&times=2", "order='down', times=2)"),
        ("Ordered?path=a&times=all", "order='up', times='all')"),
    ],
)
def test_options_are_read_as_they_are_declared(module: str, options: str, declared: str) -> None:
    assert repr(parse_task(f"{module}:{options}").task).endswith(declared)


NO_TYPE = r"The option words of .*:Listed must be declared as str, .*, got list\[str\]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("Lines?limit=3", r"the option path, got none; write .*\?path="),
        ("Incomplete", "got none of examples, gen_length, score, version"),
        ("Changeable", r"must be a frozen dataclass, .*; write @dataclass\(frozen=True\)\."),
        ("Listed?path=a&words=b", NO_TYPE),
        # A list as default could not be hashed.
        ("Listed?path=a", NO_TYPE),
        ("Ordered?path=a&order=left", r"^order must be one of up, down, got 'left'"),
        ("Empty?path=lines.txt", "must have at least one example, got none"),
        # The run ended without a word: it waited for records without end.
        ("Twins?path=lines.txt", r"must have distinct ids, got '.*' 2 times"),
    ],
)
def test_wrong_options_and_tasks_are_refused(module: str, options: str, message: str) -> None:
    """Some were a TypeError, others were accepted until they were used."""
    with pytest.raises(ValueError, match=message):
        select(f"{module}:{options}")

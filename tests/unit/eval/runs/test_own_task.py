"""A task of the user's own: what it gets wrong is said before anything is decoded."""

import sys
from pathlib import Path

import eval_runs
import pytest

from eval.reports.summary import measured
from eval.runs.names import parse_task
from eval.runs.runner import execute
from eval.runs.sweep import Sweep

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
}
SCORES = {
    "Nothing": "1.0", "TooMuch": '{"answer": 2.0}', "Unlike": '{"answer": 0.0}',
    "Undefined": '{"answer": None}', "Worded": '{"answer": "1"}', "Listing": '{"answer": [1.0]}',
    "Raising": '{"answer": example.meta["gold"] == text}',
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
    assert measured(folder).summary["rows"][0]["scores"]["words"] == 1.0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Nothing", r"must return a mapping such as \{'answer': 1.0\}, got 1.0"),
        ("Misnamed", "must return the primary score 'right' among others, got 'answer', 'words'"),
        ("TooMuch", r"Scores must be numbers in \[0, 1\], .* None, got 'answer': 2.0"),
        ("Unlike", r"own target must score 1 in 'answer', got 0.0 for the target 'emma .*'"),
        ("Undefined", r"own target must score 1 in 'answer', got None for the target 'emma .*'"),
        ("Worded", r"Scores must be numbers in .*, got 'answer': '1'.* the example '"),
        ("Listing", r"Scores must be numbers in .*, got 'answer': \[1.0\].* the example '"),
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


def test_examples_of_one_id_are_refused(module: str, tmp_path: Path) -> None:
    """The run ended without a word and without a report: it waited for records without end."""
    (tmp_path / "lines.txt").write_text("one\ntwo\none")
    with pytest.raises(ValueError, match=r"must have distinct ids, got '.*' 2 times"):
        select(f"{module}:Lines?path=lines.txt")


def test_what_an_address_or_a_task_lacks_is_asked_for(module: str) -> None:
    """Both were a TypeError: of __init__, and of an abstract class."""
    with pytest.raises(ValueError, match=r"the option path, got none; write .*\?path="):
        parse_task(f"{module}:Lines?limit=3")
    with pytest.raises(ValueError, match="got none of examples, gen_length, score, version"):
        parse_task(f"{module}:Incomplete")


def test_options_are_read_as_they_are_declared(module: str) -> None:
    """A path was said to be no whole number."""
    found = parse_task(f"{module}:Lines?path=a/b&limit_words=4").task
    assert repr(found) == f"Lines(path={Path('a/b')!r}, limit_words=4)"
    assert "limit_words=None" in repr(parse_task(f"{module}:Lines?path=a&limit_words=None").task)


def test_an_option_of_no_readable_type_is_refused_even_where_it_is_not_given(module: str) -> None:
    """A list was accepted until it was used, and a list as default could not be hashed."""
    message = rf"The option words of {module}:Listed must be declared as str, .*, got list\[str\]"
    for options in ("path=a&words=b", "path=a"):
        with pytest.raises(ValueError, match=message):
            parse_task(f"{module}:Listed?{options}")


def test_an_option_of_few_values_takes_no_other(module: str) -> None:
    """Literal["up", "down"] took every text, and the task ran with it."""
    found = parse_task(f"{module}:Ordered?path=a&order=down&times=2").task
    assert repr(found).endswith("order='down', times=2)")
    found = parse_task(f"{module}:Ordered?path=a&times=all").task
    assert repr(found).endswith("order='up', times='all')")
    assert repr(parse_task(f"{module}:Ordered?path=a&times=None").task).endswith("times=None)")
    with pytest.raises(ValueError, match=r"^order must be one of up, down, got 'left'"):
        parse_task(f"{module}:Ordered?path=a&order=left")
    with pytest.raises(ValueError, match=r"^times must be one of 1, 2, all, got '3'"):
        parse_task(f"{module}:Ordered?path=a&times=3")

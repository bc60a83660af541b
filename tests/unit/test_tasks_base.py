"""What every task shares: determinism, ids, cutting at stop strings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eval.runs.names import TASKS
from eval.tasks import LatinSquare, ListTask, Sudoku4, WordProblems
from eval.tasks.base import Example, checked_scores, cut_at

ROOT = Path(__file__).parents[2]
NEED_FILES = {"gsm8k", "humaneval", "mbpp"}
PROGRAM = """
from eval.tasks import LatinSquare, ListTask, Sudoku4, WordProblems, WordsToSentence, vocabulary
lists = [ListTask("insert_any"), ListTask("shuffle")]
tasks = [WordProblems(templates=()), *lists, LatinSquare(4), Sudoku4(), WordsToSentence()]
for task in tasks:
    for split in task.splits:
        print(task.examples(split, 5))
print(vocabulary())
"""


def output_of(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = [sys.executable, "-c", PROGRAM]
    # frozensets print in hash order only for strings; the meta data hold none of those.
    return subprocess.run(
        run, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_examples_are_the_same_in_every_process() -> None:
    assert output_of("0") == output_of("1")


def test_tasks_are_equal_by_their_settings_and_print_as_their_constructor() -> None:
    for task in (WordProblems(100, 9), ListTask("copy", n=3), LatinSquare(3), Sudoku4(4, 5)):
        assert eval(repr(task)) == task
        assert hash(task) == hash(eval(repr(task)))


@pytest.mark.parametrize("name", sorted(set(TASKS) - NEED_FILES))
def test_a_registered_task_scores_its_own_targets_and_its_splits_are_disjoint(name: str) -> None:
    task = TASKS[name]()
    seen: set[str] = set()
    for split in task.splits:
        examples = task.examples(split, 20)
        ids = {example.id for example in examples}
        assert ids
        assert not ids & seen
        seen |= ids
        for example in examples:
            scores = checked_scores(task.score(example, example.target), task.primary)
            # Grammar is undefined where its checker is not installed.
            assert scores[task.primary] in (1.0, None)


def test_plain_text_becomes_one_user_turn() -> None:
    assert Example("a", "why ?", "#### 1").turns() == [{"role": "user", "content": "why ?"}]
    turns = [{"role": "user", "content": "why ?"}]
    assert Example("a", turns, "#### 1").turns() == turns


def test_text_is_cut_at_the_first_stop_string() -> None:
    assert cut_at("5 </s> Question: 6", ("Question:", "</s>")) == "5 "
    assert cut_at("5", ("Question:",)) == "5"
    assert cut_at("5", ()) == "5"

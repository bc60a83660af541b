"""The word problems: their world of numbers, splits and scores."""

import random
import re

import pytest

from eval.tasks.base import SHARES
from eval.tasks.grammar import cast
from eval.tasks.number_world import MAX_FACTOR, MAX_VALUE, templates
from eval.tasks.word_problems import EQUATION, WordProblems

KNOWN, HELD_OUT = cast("known"), cast("held_out")
TASK = WordProblems()


def drawn(task: WordProblems, split: str = "train", count: int = 300):
    rng = random.Random(3)
    return [task.draw(rng, split) for _ in range(count)]


def tuple_of(example) -> tuple:
    return example.meta["template"], *example.meta["numbers"].items()


def test_every_number_stays_in_the_world_and_every_step_is_true() -> None:
    seen = set()
    for example in drawn(TASK, "train", 400):
        seen.add(example.meta["template"])
        numbers = [int(n) for n in re.findall(r"\d+", f"{example.prompt} {example.target}")]
        assert all(1 <= number <= MAX_VALUE for number in numbers)
        for left, operator, right, result in EQUATION.findall(example.target):
            a, b, c = int(left), int(right), int(result)
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator] == c
            assert {"*": min(a, b), "/": b}.get(operator, 1) <= MAX_FACTOR
    assert seen == set(templates())


@pytest.mark.parametrize("split", TASK.splits)
def test_references_score_one_and_corrupted_references_do_not(split: str) -> None:
    for example in TASK.examples(split, 8):
        assert set(TASK.score(example, example.target).values()) == {1.0}
        answer = example.meta["answer"]
        for wrong in (answer + 1, answer - 1, answer * 10):
            text = example.target.replace(f"#### {answer}", f"#### {wrong}")
            scores = TASK.score(example, text)
            assert scores["answer"] == scores["answer_flexible"] == 0.0
            assert scores["steps_valid"] == 1.0
        assert TASK.score(example, "")["answer"] == 0.0


def test_scores_tell_kinds_of_errors_apart() -> None:
    example = next(e for e in drawn(TASK, "test") if e.meta["template"] == "gain_lose")
    a, b, c = example.meta["numbers"].values()
    first = f"anna now has {a} + {b} = {a + b} ."
    last = f"anna has {a + b} - {c} = {a + b - c} ."
    result = f"#### {a + b - c}"
    false_step = f"anna now has {a} + {b} = {a + b + 1} . {last} {result}"
    for text, wanted in (
        (false_step, {"steps_valid": 0.5, "answer": 1.0}),
        (f"{first} {last}", {"answer": 0.0, "answer_flexible": 1.0, "format": 0.0}),
        (f"{first} anna has 199 - 198 = 1 . {result}", {"consistent": 0.0, "steps_valid": 1.0}),
        (f"{first} {last} {result} {first}", {"answer": 1.0, "format": 0.0}),
    ):
        assert wanted.items() <= dict(TASK.score(example, text)).items()


def test_train_val_and_test_share_no_numbers() -> None:
    seen = {
        split: {tuple_of(example) for example in drawn(TASK, split, 300 if split in SHARES else 60)}
        for split in TASK.splits
    }
    assert not seen["train"] & set.union(*(seen[split] for split in TASK.splits[1:]))
    assert not seen["val"] & seen["test"]


def test_special_splits_hold_what_they_promise() -> None:
    for example in drawn(TASK, "test_entity", 60):
        assert not set(example.prompt.split()) & set().union(*KNOWN)
    for example in drawn(TASK, "train", 300):
        assert not set(example.prompt.split()) & set().union(*HELD_OUT)

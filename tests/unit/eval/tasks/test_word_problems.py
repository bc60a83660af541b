"""The word problems: their world of numbers, splits and scores."""

import random
import re

import pytest

from eval.tasks.base import SHARES
from eval.tasks.grammar import cast
from eval.tasks.number_world import templates
from eval.tasks.word_problems import EQUATION, SPLITS, WordProblems

TEMPLATES = templates().values()
KNOWN, HELD_OUT = cast("known"), cast("held_out")
TASK = WordProblems(200, 12, templates=())
WIDE = WordProblems(999, 30, ("times_total", "packs", "egg_week", "stock", "two_workers"))
WORLDS = [WordProblems(100, 9, templates=()), TASK, WIDE]


def drawn(task: WordProblems, split: str = "train", count: int = 300):
    rng = random.Random(3)
    return [task.draw(rng, split) for _ in range(count)]


def tuple_of(example) -> tuple:
    return example.meta["template"], *example.meta["numbers"].items()


def test_held_out_templates_use_no_word_that_training_templates_lack() -> None:
    seen = set().union(*(t.words() for t in TEMPLATES if not t.held_out))
    assert all(template.words() <= seen for template in TEMPLATES)


@pytest.mark.parametrize("task", WORLDS, ids=repr)
def test_every_number_stays_in_the_world_and_every_step_is_true(task: WordProblems) -> None:
    seen = set()
    for split in ("train", "test_template"):
        for example in drawn(task, split, 120):
            seen.add(example.meta["template"])
            numbers = [int(n) for n in re.findall(r"\d+", f"{example.prompt} {example.target}")]
            assert all(1 <= number <= task.max_value for number in numbers)
            for left, operator, right, result in EQUATION.findall(example.target):
                a, b, c = int(left), int(right), int(result)
                assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator] == c
                factor = {"*": min(a, b), "/": b}.get(operator, 1)
                assert factor <= task.max_factor
    assert len(seen) >= 30 or seen == set(task.templates)
    assert not seen & set(task.excluded)


def test_templates_without_500_problems_are_excluded() -> None:
    """Ages has two slots, so its problems can be counted."""
    assert WIDE.excluded == ()
    assert WordProblems(100, 9, templates=()).excluded == ("times_total", "fence", "ages")

    def count(max_value: int) -> int:
        pairs = ((a, b) for a in range(2, 121) for b in range(2, 100))
        return sum(a + (a + b) + 2 * (a + b) <= max_value for a, b in pairs)

    excluded = {w for w in (110, 140) if WordProblems(w, 12, ("ages",)).excluded}
    assert excluded == {w for w in (110, 140) if count(w) < 500} == {110}


@pytest.mark.parametrize("split", SPLITS)
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
    example = WordProblems(templates=("gain_lose",)).examples("test", 1)[0]
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
    narrow = WordProblems(100, 9, ("chain_three", "more_pages", "bus"))
    splits = ("train", "val", "test", "test_large", "test_entity")
    seen = {s: {tuple_of(e) for e in drawn(narrow, s, 100 if s in SHARES else 20)} for s in splits}
    assert not seen["train"] & set.union(*(seen[split] for split in splits[1:]))
    assert not seen["val"] & seen["test"]


def test_special_splits_hold_what_they_promise() -> None:
    held_out = {template.id for template in TEMPLATES if template.held_out}
    assert {e.meta["template"] for e in drawn(TASK, "test_template", 60)} == held_out
    for example in drawn(TASK, "test_entity", 60):
        assert not set(example.prompt.split()) & set().union(*KNOWN)
    for example in drawn(TASK, "train", 300):
        assert example.meta["template"] not in held_out
        assert not set(example.prompt.split()) & set().union(*HELD_OUT)

"""The parts that all tasks share: determinism, ids, splits, cutting at stop strings."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from eval.runs.task_addresses import TASKS, digest_of_examples, parse_task
from eval.tasks import ListTask, WordProblems
from eval.tasks.base import Example, SampledTask, content_id
from eval.tasks.jsonl import JsonLines
from eval.tasks.lists import OUTPUTS
from eval.tasks.task_checks import require_examples, require_target_score

NEED_FILES = {"gsm8k"}

RECORDED = {
    "word_problems": "626a8ec92c6de8c2",
    "ledgers": "f2d505937b1ee7c7",
    "lists/shuffle": "92846a27323f83b8",
}


@pytest.mark.parametrize("name", RECORDED)
def test_examples_are_those_that_the_embedded_models_were_trained_on(name: str) -> None:
    """An edit of a grammar, or another order of draws, is a new version of the task."""
    task = parse_task(name).task
    examples = [example for split in task.splits for example in task.examples(split, 30)]
    texts = [f"{example.prompt} {example.target}" for example in examples]
    assert content_id("\n".join(texts)) == RECORDED[name]


def test_tasks_are_equal_by_their_settings_and_print_as_their_constructor() -> None:
    for task in (WordProblems(), ListTask("copy", n=3)):
        assert eval(repr(task)) == task
        assert hash(task) == hash(eval(repr(task)))


LISTS = [f"lists/{keyword}" for keyword in OUTPUTS]


@pytest.mark.parametrize("name", [*sorted(set(TASKS) - NEED_FILES), *LISTS])
def test_a_registered_task_scores_its_own_targets_and_its_splits_are_disjoint(name: str) -> None:
    task = parse_task(name).task
    seen: set[str] = set()
    for split in task.splits:
        examples = task.examples(split, 8)
        ids = {example.id for example in examples}
        assert ids
        assert not ids & seen
        seen |= ids
        require_examples(name, examples)
        for example in examples:
            require_target_score(name, task, example)
            assert task.score(example, "")[task.primary] in (0.0, None)


def test_a_file_of_questions_scores_its_own_targets_if_they_can_match(tmp_path: Path) -> None:
    """All was decoded, and every answer was wrong without a number, or right without a text."""
    first = json.dumps({"prompt": "6 * 7 ?", "answer": "so 6 * 7 = 42"})
    for match, answer, refusal in (
        ("auto", "42", ""), ("number", "so 6 * 8 = 48", ""), ("contains", "forty two", ""),
        ("exact", "", ""), ("number", "many", "must have a number as its answer .* got 'many'"),
        ("contains", " ", "must have a text as its answer .* got ' '"),
    ):  # fmt: skip
        second = json.dumps({"prompt": "6 * 8 ?", "answer": answer})
        (tmp_path / "own.jsonl").write_text(f"{first}\n{second}\n")
        selection = parse_task(f"jsonl:{tmp_path}/own.jsonl?match={match}")
        if refusal:
            with pytest.raises(ValueError, match=f"Line 2 of .*{refusal}"):
                selection.examples()
        else:
            selection.require_scores(selection.examples())


@pytest.mark.parametrize(
    ("target", "text", "score"),
    [
        ("7", "the answer is 7 ...", 1.0),
        ("7", "x = 7..", 1.0),
        ("7", "...7", 1.0),
        ("7", "7.0, $$ ,.", 1.0),
        ("0.5", "half, that is .5", 1.0),
        ("-1,200", "-1200.00.", 1.0),
        ("#### 7", "3 or 7", 1.0),
        ("7", "7 or 3", 0.0),
        ("7", "1.2.7", 0.0),
        ("7", "none ...", 0.0),
        ("many", "none", 0.0),
    ],
)
def test_numbers_are_compared_by_their_value(target: str, text: str, score: float) -> None:
    """Dots behind a number were taken for another one, and 0.5 was not .5."""
    task = JsonLines("own.jsonl", match="number")
    assert task.score(Example("?", target), text) == {"answer": score}


@dataclass(frozen=True)
class Doubling(SampledTask):
    """Has as many questions as it is told."""

    most: int = 90

    version = 1
    primary = "answer"
    gen_length = 4
    name = "doubling"

    def sample(self, rng: random.Random) -> Example:
        number = rng.randint(0, self.most)
        return Example(f"{number} + {number}", str(2 * number))

    def score(self, example: Example, text: str) -> dict[str, float | None]:
        return {"answer": float(text == example.target)}


class ByTens(Doubling):
    """Keeps numbers with the same tens together."""

    def split_key(self, example: Example) -> str:
        return str(example.prompt).partition(" ")[0][:-1]


class Folds(Doubling):
    """Has a split that no hash knows."""

    splits = ("test", "hard")


def test_a_split_without_a_possible_question_is_refused_instead_of_sought_for_ever() -> None:
    """The recipe's own loop never ended."""
    assert [example.target for example in Doubling(0).examples("train")] == ["0"]
    message = r"Doubling\(most=0\) must have .* 'test', got none in 10000 draws; .* 1 in 20 of all"
    with pytest.raises(ValueError, match=message):
        Doubling(0).examples("test")
    with pytest.raises(ValueError, match=r"must be one of train, val, test, got 'hard'; override"):
        Folds().examples("hard")


def test_every_example_that_can_be_drawn_is_in_one_split() -> None:
    """A task of few questions: each split returns all of its own, `test` about 1 in 20."""
    task = Doubling(199)
    splits = {split: task.examples(split, 500) for split in task.splits}
    assert sorted(int(e.target) // 2 for part in splits.values() for e in part) == list(range(200))
    assert 3 < len(splits["test"]) < 20
    assert 3 < len(splits["val"]) < 20
    by_tens = ByTens(399)
    tens = [{int(e.target) // 20 for e in by_tens.examples(split, 399)} for split in by_tens.splits]
    assert all(tens)
    assert sum(map(len, tens)) == 40


class Nameless(Doubling):
    """Gives every example the same name."""

    def sample(self, rng: random.Random) -> Example:
        return replace(super().sample(rng), id="one")


def test_a_limit_counts_examples_of_distinct_ids() -> None:
    """A task of 200 examples silently had one, and limit=4 was said to be too many."""
    with pytest.raises(ValueError, match=r"distinct ids, got 'one' for '\d+ \+ \d+' and '\d+ "):
        Nameless(90).examples("train")
    task = Doubling(0)
    with pytest.raises(ValueError, match=r"at most 1, the number of examples with distinct ids in"):
        task.require_enough("train", len(task.examples("train", 4)), 4)


def test_an_example_is_named_by_its_prompt_unless_it_has_a_name() -> None:
    turns = [{"role": "user", "content": "why ?"}]
    assert Example("why ?", "so").id == Example("why ?", "because").id != Example(turns, "so").id
    assert Example("why ?", "so", id="first").id == "first"
    assert Example("why ?", "so").turns() == Example(turns, "so").turns() == turns


def test_a_digest_tells_targets_and_numbers_of_examples_apart() -> None:
    first, second = Example("why ?", "so"), Example("why ?", "because")
    assert (
        len({digest_of_examples(examples) for examples in ([first], [second], [first, second])})
        == 3
    )

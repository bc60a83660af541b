"""The list operations: answers, splits, scores and closed forms."""

import random

import pytest

from eval.tasks.lists import OUTPUTS, ListQuestion, ListTask, valid_outputs, words_of_lists

KEYWORDS = tuple(OUTPUTS)
ITEMS = words_of_lists()
assert (len(KEYWORDS), len(set(ITEMS))) == (13, 32)


def drawn(task: ListTask, split: str = "train", count: int = 60):
    rng = random.Random(5)
    return [task.draw(rng, split) for _ in range(count)]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_answers_are_distinct(keyword: str) -> None:
    for example in drawn(ListTask(keyword), count=30):
        question = example.meta["request"]
        if len(question.items) <= 6:
            answers = valid_outputs(question)
            assert len(answers) == len(set(answers)) > 0


def test_a_huge_enumeration_is_refused() -> None:
    question = ListQuestion("shuffle", ITEMS[:9])
    with pytest.raises(ValueError, match=r"at most 50000 answers, got 362880"):
        valid_outputs(question)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (ListQuestion("reverse", ("leo", "keys", "olga")), ("olga", "keys", "leo")),
        (ListQuestion("sort", ("leo", "olga", "keys")), ("keys", "leo", "olga")),
        (ListQuestion("replace_at", ("leo", "olga", "keys"), 2, "vera"), ("leo", "vera", "keys")),
        (ListQuestion("insert_at", ("leo", "olga"), 3, "vera"), ("leo", "olga", "vera")),
        (ListQuestion("remove_at", ("leo", "olga", "keys"), 1), ("olga", "keys")),
    ],
)
def test_positions_are_counted_from_one(asked: ListQuestion, answer: tuple[str, ...]) -> None:
    assert valid_outputs(asked) == (answer,)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_references_score_one_and_corrupted_references_zero(keyword: str) -> None:
    task = ListTask(keyword)
    for split in task.splits:
        for example in drawn(task, split, 6):
            assert set(task.score(example, example.target).values()) == {1.0}
            words = [w for w in example.target.split() if w not in {"[", "]", ",", '"'}]
            stranger = next(item for item in ITEMS if item not in f"{example.prompt}")
            text = example.target.replace(words[-1], stranger)
            for wrong in (text, "", f"{example.target} [ ]", words[0]):
                assert set(task.score(example, wrong).values()) == {0.0}
            assert len(example.target.split()) < task.gen_length


def test_lenient_scoring_forgives_quotes_and_commas_and_strict_does_not() -> None:
    task = ListTask("copy", n=3)
    example = task.examples("test", 1)[0]
    items = example.meta["request"].items
    loose = "the list is [" + ", ".join(f'"{item}"' for item in items) + "] ."
    assert task.score(example, loose) == {"answer": 1.0, "answer_strict": 0.0}


def test_references_are_uniform_over_the_answers() -> None:
    """Each of the 24 orders has 4800 / 24 = 200 expected draws; 60 away is over four sigma."""
    task = ListTask("shuffle", n=4)
    counts: dict[tuple[int, ...], int] = {}
    for example in drawn(task, count=4800):
        items = example.meta["request"].items
        order = tuple(items.index(item) for item in example.target.split()[1:-1])
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert all(abs(count - 200) < 60 for count in counts.values())


def test_long_lists_are_a_split_of_their_own() -> None:
    assert {len(e.meta["request"].items) for e in drawn(ListTask("copy"), "test_length")} == {9, 10}
    assert {len(e.meta["request"].items) for e in drawn(ListTask("copy"))} == {3, 4, 5, 6, 7, 8}
    assert "test_length" not in ListTask("copy", n=4).splits

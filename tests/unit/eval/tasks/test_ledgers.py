"""Ledgers: what is drawn, and what counts as a right answer."""

import random
from typing import Any

import pytest

from eval.tasks import Example, Ledgers
from eval.tasks.grammar import cast
from eval.tasks.ledgers import Account, Ledger
from examples.mini.vocabulary import build_ledger_tokenizer

TASK = Ledgers()
LEDGER = Ledger((Account("anna", 40, (7, -3)), Account("ben", 25, (5,))))
LINES = (
    "january anna gains 7 : 40 + 7 = 47 , so now anna has 47 .",
    "february anna loses 3 : 47 - 3 = 44 , which means anna has 44 .",
    "with anna added : 0 + 44 = 44 , so the total is now 44 .",
    "march ben gets 5 : 25 + 5 = 30 , so now ben has 30 .",
    "with ben added : 44 + 30 = 74 , so the total is now 74 .",
    "#### 74",
)
EXAMPLE = Example("", " ".join(LINES), {"ledger": LEDGER}, id="0")


def scores(*lines: str) -> dict[str, Any]:
    return dict(TASK.score(EXAMPLE, " ".join(lines)))


def changed(line: int, old: str, new: str) -> dict[str, Any]:
    assert old in LINES[line]
    return scores(*LINES[:line], LINES[line].replace(old, new), *LINES[line + 1 :])


def test_synonyms_do_not_matter() -> None:
    for line, old, new in (
        (0, "gains", "finds"), (1, "loses", "sells"), (1, "which means", "so now"),
        (3, "so now", "which means"),
    ):  # fmt: skip
        assert changed(line, old, new) == {"answer": 1.0, "result": 1.0, "steps": 1.0}


def test_accounts_come_in_any_order_and_steps_of_one_account_do_not() -> None:
    first, second, total, third, together, last = LINES
    assert scores(third, first, second, total, together, last)["answer"] == 1.0
    assert scores(first, third, second, total, together, last)["answer"] == 1.0
    ben = "with ben added : 0 + 30 = 30 , so the total is now 30 ."
    anna = "with anna added : 30 + 44 = 74 , so the total is now 74 ."
    assert scores(third, ben, first, second, anna, last)["answer"] == 1.0
    swapped = scores(second, first, total, third, together, last)
    assert swapped == {"answer": 0.0, "result": 1.0, "steps": 0.0}


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (0, "has 47", "has 48"), (0, "40", "41"), (0, "january", "march"), (1, "- 3", "+ 3"),
        (1, "loses", "gains"), (2, "0 + 44", "1 + 44"), (2, "with anna", "with ben"),
        (3, "gets 5", "gets 6"), (3, "ben has", "anna has"), (4, "74", "75"), (5, "74", "75"),
        (5, "74", "74 74"),
    ],
)  # fmt: skip
def test_a_mistake_counts_where_it_stands(line: int, old: str, new: str) -> None:
    result = changed(line, old, new)
    assert (result["answer"], result["steps"]) == (0.0, line / 5)


def test_a_step_that_is_missing_or_there_twice_is_a_mistake() -> None:
    for line in range(5):
        assert scores(*LINES[:line], *LINES[line + 1 :])["answer"] == 0.0
        assert scores(*LINES[: line + 1], *LINES[line:])["answer"] == 0.0
    assert scores()["answer"] == 0.0


def test_a_total_waits_for_its_account() -> None:
    first, second, total, *rest = LINES
    early = "with anna added : 0 + 47 = 47 , so the total is now 47 ."
    assert scores(first, early, second, *rest)["steps"] == 1 / 5
    assert scores(first, total, second, *rest)["steps"] == 1 / 5


@pytest.mark.parametrize("split", TASK.splits)
def test_every_example_is_a_right_answer_within_the_world(split: str) -> None:
    rng = random.Random(0)
    tokenizer = build_ledger_tokenizer()
    people = cast("held_out" if split == "test_entity" else "known").names
    least, most = (206, 240) if split == "test_length" else (87, 189)
    for _ in range(25):
        example = TASK.draw(rng, split)
        ledger = example.meta["ledger"]
        assert TASK.score(example, example.target)["answer"] == 1.0
        assert {account.name for account in ledger.accounts} <= set(people)
        ids = tokenizer.encode(f"{example.prompt} {example.target}", add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        length = len(tokenizer.encode(example.target, add_special_tokens=False))
        assert least <= length <= most
        assert length < TASK.gen_length
        amounts = [abs(change) for account in ledger.accounts for change in account.changes]
        assert len(set(amounts)) == len(amounts)


def test_splits_share_no_numbers() -> None:
    keys = {s: {e.meta["ledger"].key() for e in TASK.examples(s, 40)} for s in TASK.splits}
    for split in ("val", "test", "test_entity", "test_length"):
        assert not keys["train"] & keys[split]
    assert not keys["val"] & keys["test"]


def test_a_question_may_be_written_as_anyone_would() -> None:
    tokenizer = build_ledger_tokenizer()
    plain = "anna has 40 beads . in january anna finds 7 . how many beads does anna have ?"
    written = "Anna has 40 beads. In January Anna finds 7. How many beads does Anna have?"
    assert tokenizer.encode(written) == tokenizer.encode(plain)
    assert tokenizer.decode(tokenizer.encode(LINES[-1])) == LINES[-1]

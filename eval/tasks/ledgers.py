"""Ledgers: long worked answers in which some steps depend on one another and others do not."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from eval.tasks.base import MAX_DRAWS, Example, GeneratedTask, split_of
from eval.tasks.grammar import Slots, cast, read_world, sentences, word_list

LONG_STEPS = (12, 14)
MAX_ACCOUNTS = 3
MAX_BALANCE = 60
MAX_TOTAL = 100
MAX_CHANGE = 15
START_BALANCES = (16, 45)

RESULT = re.compile(r"#### (\d+)")


class Line(NamedTuple):
    """A sentence of `worlds/ledgers.toml`, by its name, with the words and numbers of its slots."""

    sentence: str
    slots: Slots


@dataclass(frozen=True)
class Account:
    """A person, the number of things at first, and the changes in order; losses are negative."""

    name: str
    start: int
    changes: tuple[int, ...]

    @property
    def end(self) -> int:
        """The number of things after all changes."""
        return self.start + sum(self.changes)


@dataclass(frozen=True)
class Ledger:
    """The meaning of a question: its accounts, in order."""

    accounts: tuple[Account, ...]

    @property
    def num_steps(self) -> int:
        """Lines of an answer: one for each change, and one that adds each account to the total."""
        return sum(len(account.changes) + 1 for account in self.accounts)

    @property
    def answer(self) -> int:
        """The number that is asked for: the sum over all accounts at the end."""
        return sum(account.end for account in self.accounts)

    def changes(self) -> dict[Account, list[Line]]:
        """Returns the lines of each account; each change has a month of its own."""
        remaining = iter(months())
        lines: dict[Account, list[Line]] = {account: [] for account in self.accounts}
        for account, account_lines in lines.items():
            before = account.start
            for change in account.changes:
                slots = {**addition_slots(account.name, before, change), "month": next(remaining)}
                account_lines.append(Line("gain" if change > 0 else "loss", slots))
                before += change
        return lines

    def key(self) -> str:
        """Returns the numbers, which decide the split, without names."""
        return ";".join(f"{account.start}{account.changes}" for account in self.accounts)


@dataclass(frozen=True)
class Ledgers(GeneratedTask):
    """Who has how many after gains and losses, and how many in all, with every step written down.

    A question such as `anna has 40 beads , in january anna finds 7 and in february anna loses 3 .
    ben has 25 beads . in march ben buys 5 . how many beads do they have together ?` is answered by
    one line for each change of an account, a line that adds each account to the total, and the
    result:

        january anna gains 7 : 40 + 7 = 47 , so now anna has 47 .
        february anna loses 3 : 47 - 3 = 44 , which means anna has 44 .
        with anna added : 0 + 44 = 44 , so the total is now 44 .
        march ben gets 5 : 25 + 5 = 30 , so now ben has 30 .
        with ben added : 44 + 30 = 74 , so the total is now 74 . #### 74

    (on one line of text). A change depends on the earlier changes of its account alone, a total on
    its account and on the total before it, so that the lines of different accounts can be found at
    once, and accounts written in any order. In each line the verb (`gains` or `gets`, `loses` or
    `drops`) and the connective (`so now` or `which means`) are free. A line has 17 tokens; an
    answer has 87 to 189, in `test_length` 206 to 240.

    Starts are in [16, 45], balances in [1, 60], changes in [1, 15] and different within a question,
    totals at most 100.

    Splits: `train`, `val` and `test` are disjoint in their numbers.
    `test_entity` has people and objects that no training question mentions, with numbers of `test`;
    `test_length` has 12 to 14 steps, the other splits have `min_steps` to `max_steps`.

    Attributes:
        min_steps: Least number of steps, at least 2.
        max_steps: Greatest number of steps outside `test_length`, at most 11.
    """

    min_steps: int = 5
    max_steps: int = 11

    name = "ledgers"
    version = 3
    primary = "answer"
    marker = "####"
    gen_length = 256
    splits = ("train", "val", "test", "test_entity", "test_length")

    def __post_init__(self) -> None:
        if not 2 <= self.min_steps <= self.max_steps < LONG_STEPS[0]:
            raise ValueError(
                f"min_steps and max_steps must be 2 <= min_steps <= max_steps < {LONG_STEPS[0]}, "
                f"got {self.min_steps} and {self.max_steps}."
            )

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one question; the numbers of steps of a split are equally likely."""
        self.require(split, None)
        least, most = LONG_STEPS if split == "test_length" else (self.min_steps, self.max_steps)
        people, objects = cast("held_out" if split == "test_entity" else "known")
        num_steps = rng.randint(least, most)
        for _ in range(MAX_DRAWS):
            ledger = draw_ledger(rng, num_steps, people)
            if ledger is not None and split_of(ledger.key()) == split.partition("_")[0]:
                prompt = _write_question(ledger, rng, rng.choice(objects))
                meta = {"ledger": ledger, "num_steps": num_steps, "answer": ledger.answer}
                return Example(prompt, write_answer(ledger, rng), meta)
        raise self.none_found(split, "widen its steps")

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by its meaning: synonyms and the order of accounts do not matter.

        `answer` (primary): every step is there once, in an order that its account allows, with the
        right operands and result, then `####` and the right number; nothing else is written.
        `result`: the number after the first `####` is right. `steps`: share of the steps before the
        first mistake.
        """
        ledger = example.meta["ledger"]
        right, rest = _read_steps(ledger, f"{text.strip()} ")
        result = RESULT.search(text)
        complete = right == ledger.num_steps and rest.strip() == f"#### {ledger.answer}"
        return {
            "answer": float(complete),
            "result": float(result is not None and int(result[1]) == ledger.answer),
            "steps": right / ledger.num_steps,
        }


@cache
def months() -> tuple[str, ...]:
    """Returns the months in which the changes of a question come, in order."""
    return word_list(read_world("ledgers")["months"])


def _read_steps(ledger: Ledger, text: str) -> tuple[int, str]:
    """Returns the number of right steps that a text begins with, and the text after them."""
    pending = ledger.changes()
    right, total = 0, 0
    while True:
        for account, lines in pending.items():
            line = lines[0] if lines else total_line(account, total)
            written = next((form for form in wordings(line) if text.startswith(f"{form} ")), "")
            if written:
                break
        else:
            return right, text
        if lines:
            lines.pop(0)
        else:
            del pending[account]
            total += account.end
        right, text = right + 1, text[len(written) + 1 :]


def wordings(line: Line) -> Iterator[str]:
    """Yields the right ways to write a line; its verb may be any verb of the questions."""
    sentence = sentences("ledgers", "answer")[line.sentence]
    question = sentences("ledgers", "question").get(line.sentence)
    if question is not None:
        verbs = {"verb": question.wordings["verb"]}
        sentence = sentence._replace(wordings={**sentence.wordings, **verbs})
    return sentence.all(line.slots)


def draw_ledger(rng: random.Random, num_steps: int, people: Sequence[str]) -> Ledger | None:
    """Draws a ledger of `num_steps` steps; None if a balance or the total is out of range."""
    num_accounts = rng.randint(max(1, num_steps - len(months())), min(MAX_ACCOUNTS, num_steps // 2))
    num_changes = num_steps - num_accounts
    cuts = sorted(rng.sample(range(1, num_changes), num_accounts - 1))
    amounts = rng.sample(range(1, MAX_CHANGE + 1), num_changes)
    accounts = []
    for name, start, end in zip(
        rng.sample(people, num_accounts), (0, *cuts), (*cuts, num_changes), strict=True
    ):
        first = balance = rng.randint(*START_BALANCES)
        changes = [rng.choice((-amount, amount)) for amount in amounts[start:end]]
        for change in changes:
            balance += change
            if not 1 <= balance <= MAX_BALANCE:
                return None
        accounts.append(Account(name, first, tuple(changes)))
    ledger = Ledger(tuple(accounts))
    return ledger if ledger.answer <= MAX_TOTAL else None


def addition_slots(name: str, before: int, change: int) -> dict[str, str | int]:
    """Returns the slots of a line that adds a change, which may be negative."""
    return {"name": name, "before": before, "amount": abs(change), "after": before + change}


def total_line(account: Account, total: int) -> Line:
    """Returns the line that adds an account to the total."""
    return Line("total", addition_slots(account.name, total, account.end))


def write_answer(ledger: Ledger, rng: random.Random) -> str:
    """Writes a right answer in drawn words, with accounts in the order of the question."""
    lines, total = [], 0
    for account, changes in ledger.changes().items():
        lines += [*changes, total_line(account, total)]
        total += account.end
    grammar = sentences("ledgers", "answer")
    texts = [grammar[line.sentence].write(rng, line.slots) for line in lines]
    return " ".join([*texts, f"#### {total}"])


def _write_question(ledger: Ledger, rng: random.Random, thing: str) -> str:
    """Writes a question; the wording and the joining of clauses are drawn."""
    story = write_story(ledger, rng, thing)
    ask = sentences("ledgers", "question")["one" if len(ledger.accounts) == 1 else "all"]
    return f"{story} . {ask.write(rng, {'name': ledger.accounts[0].name, 'thing': thing})}"


def write_story(ledger: Ledger, rng: random.Random, thing: str) -> str:
    """Writes the changes of all accounts, one account after another."""
    grammar, stories = sentences("ledgers", "question"), []
    for account, changes in ledger.changes().items():
        start: Slots = {"name": account.name, "before": account.start, "thing": thing}
        lines = [Line("start", start), *changes]
        stories.append(" ".join(grammar[line.sentence].write(rng, line.slots) for line in lines))
    return " . ".join(stories)

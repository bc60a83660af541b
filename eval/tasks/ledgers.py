"""Ledgers: long worked answers in which some steps depend on one another and others do not."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.tasks.base import BUCKETS, Example, GeneratedTask, bucket_of, content_id
from eval.tasks.ledger_words import (
    CONNECTIVES,
    GAIN_VERBS,
    GIVE_VERBS,
    LOSS_VERBS,
    WRITTEN_GAINS,
    WRITTEN_LOSSES,
)
from eval.tasks.word_problem_templates import (
    HELD_OUT_NAMES,
    HELD_OUT_OBJECTS,
    NAMES,
    OBJECTS,
)
from eval.tasks.word_problems import distinct

LONG_STEPS = (10, 13)
MAX_BALANCE = 70
MAX_SUM = 100
MAX_CHANGE = 15
START_BALANCES = (10, 50)
MAX_TRIES = 10_000

TRANSFER_SHARE = 0.3
TOGETHER_SHARE = 0.5
FREE_ORDER_SHARE = 0.2
"""Share of the references whose steps are in any legal order, not in the question's."""

ENTRY = re.compile(
    r"(?P<name>[a-z]+) (?P<verb>[a-z]+) (?P<amount>\d+) : (?P<before>\d+) (?P<sign>[-+]) "
    r"(?P<operand>\d+) = (?P<after>\d+) , (?:so now|which means) (?P=name) has (?P=after) \. "
)
TOGETHER = re.compile(
    r"(?P<first>[a-z]+) and (?P<second>[a-z]+) : (?P<left>\d+) \+ (?P<right>\d+) = "
    r"(?P<result>\d+) , so together they have (?P=result) \. "
)
RESULT = re.compile(r"#### (\d+)")


class Change(NamedTuple):
    """One step of an account: `amount` is added, or taken away where it is negative."""

    name: str
    amount: int


class Event(NamedTuple):
    """One clause of a question: one change, or the two changes of a transfer, giver first."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Ledger:
    """A question's meaning.

    Attributes:
        balances: What each account starts with, in the order of the question.
        events: What happens, in order.
        asked: The one account, or the two accounts together, that the question is about.
    """

    balances: Mapping[str, int]
    events: tuple[Event, ...]
    asked: tuple[str, ...]

    @property
    def changes(self) -> list[Change]:
        """The steps in the question's order."""
        return [change for event in self.events for change in event.changes]

    @property
    def num_steps(self) -> int:
        """Steps of an answer; the sum of two accounts is one."""
        return len(self.changes) + len(self.asked) - 1

    def final(self, name: str) -> int:
        """Returns what an account ends with."""
        return self.balances[name] + sum(each.amount for each in self.changes if each.name == name)

    @property
    def answer(self) -> int:
        """The number that is asked for."""
        return sum(self.final(name) for name in self.asked)

    def key(self) -> str:
        """Returns what the split is decided on: numbers and who they belong to, no names."""
        index = {name: i for i, name in enumerate(self.balances)}
        changes = ",".join(f"{index[name]}{amount:+}" for name, amount in self.changes)
        asked = ",".join(str(index[name]) for name in self.asked)
        return f"{','.join(map(str, self.balances.values()))};{changes};{asked}"


@dataclass(frozen=True)
class Ledgers(GeneratedTask):
    """Who has how many after gains, losses and transfers, with every step written down.

    A question such as `anna has 40 beads . ben has 25 beads . anna finds 7 beads . ben gives 5
    beads to anna . how many beads do anna and ben have together ?` is answered by one line for each
    change of an account, a line for the sum, and the result:

        anna gains 7 : 40 + 7 = 47 , so now anna has 47 .
        ben loses 5 : 25 - 5 = 20 , which means ben has 20 .
        anna gets 5 : 47 + 5 = 52 , so now anna has 52 .
        anna and ben : 52 + 20 = 72 , so together they have 72 . #### 72

    (on one line of text). A line depends on the earlier lines of its account and on no other, so
    lines of different accounts may be found at once, and written in any order. In each line the
    verb (`gains` or `gets`, `loses` or `drops`) and the connective (`so now` or `which means`) are
    free. A line has 16 tokens; an answer 82 to 146, in `test_length` 162 to 210.

    Balances are in [1, 70], amounts in [1, 15] and different within a question, sums up to 100.

    Splits: `train`, `val` and `test` are disjoint in their numbers, whatever the names.
    `test_entity` has people and objects that no training question mentions, with numbers of `test`;
    `test_length` 10 to 13 steps, where the others have `min_steps` to `max_steps`.

    Attributes:
        min_steps: Least number of steps, at least 1.
        max_steps: Greatest number of steps outside `test_length`, at most 9.
    """

    min_steps: int = 5
    max_steps: int = 9

    name = "ledgers"
    version = 1
    primary = "answer"
    gen_length = 256
    splits = ("train", "val", "test", "test_entity", "test_length")

    def __post_init__(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps < LONG_STEPS[0]:
            raise ValueError(
                f"min_steps and max_steps are 1 <= min_steps <= max_steps < {LONG_STEPS[0]}, "
                f"got {self.min_steps} and {self.max_steps}."
            )

    def sample(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one question; the numbers of steps of a split are equally likely."""
        self.require(split, None)
        buckets = BUCKETS["train" if split == "train" else "val" if split == "val" else "test"]
        least, most = LONG_STEPS if split == "test_length" else (self.min_steps, self.max_steps)
        people, objects = (
            (HELD_OUT_NAMES, HELD_OUT_OBJECTS) if split == "test_entity" else (NAMES, OBJECTS)
        )
        for _ in range(MAX_TRIES):
            ledger = draw_ledger(rng, rng.randint(least, most), people)
            if ledger is not None and bucket_of(ledger.key()) in buckets:
                prompt = write_question(ledger, rng, distinct(objects, 1, rng)[0])
                meta = {
                    "ledger": ledger,
                    "split": split,
                    "num_steps": ledger.num_steps,
                    "answer": ledger.answer,
                }
                return Example(content_id(prompt), prompt, write_answer(ledger, rng), meta)
        raise RuntimeError(f"{self!r} has no question for split {split!r}; widen its steps.")

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by its meaning: synonyms and the order of free steps do not matter.

        `answer` (primary): every step is there once, in an order that its account allows, with the
        right operands and result, and so is the number behind `####`; nothing else is written.
        `result`: the number behind the first `####` is right. `steps`: share of the steps that the
        text gets right before its first mistake.
        """
        ledger = example.meta["ledger"]
        right, rest = read_steps(ledger, f"{text.strip()} ")
        found = RESULT.search(text)
        complete = right == ledger.num_steps and rest.strip() == f"#### {ledger.answer}"
        return {
            "answer": float(complete),
            "result": float(found is not None and int(found[1]) == ledger.answer),
            "steps": right / ledger.num_steps,
        }


def read_steps(ledger: Ledger, text: str) -> tuple[int, str]:
    """Reads lines up to the first that is no right step.

    Returns:
        How many right steps the text begins with, and the text behind them.
    """
    balances = dict(ledger.balances)
    pending = {
        name: [change.amount for change in ledger.changes if change.name == name]
        for name in balances
    }
    right, summed = 0, False
    while True:
        entry = ENTRY.match(text)
        if entry is not None and enters(entry, balances, pending):
            pending[entry["name"]].pop(0)
            balances[entry["name"]] = int(entry["after"])
            right, text = right + 1, text[entry.end() :]
            continue
        total = TOGETHER.match(text)
        if total is None or summed or not adds_up(total, ledger, balances, pending):
            return right, text
        right, text, summed = right + 1, text[total.end() :], True


def enters(
    entry: re.Match[str], balances: Mapping[str, int], pending: Mapping[str, Sequence[int]]
) -> bool:
    """Says whether a line is the next step of its account."""
    due = pending.get(entry["name"])
    if not due:
        return False
    before, change = balances[entry["name"]], due[0]
    verbs, sign = (GAIN_VERBS, "+") if change > 0 else ((*LOSS_VERBS, *GIVE_VERBS), "-")
    amount = str(abs(change))
    written = tuple(entry[part] for part in ("amount", "before", "sign", "operand", "after"))
    wanted = (amount, str(before), sign, amount, str(before + change))
    return entry["verb"] in verbs and written == wanted


def adds_up(
    total: re.Match[str],
    ledger: Ledger,
    balances: Mapping[str, int],
    pending: Mapping[str, Sequence[int]],
) -> bool:
    """Says whether a line is the sum of the two accounts asked for, all their steps done."""
    names = (total["first"], total["second"])
    if sorted(names) != sorted(ledger.asked) or any(pending[name] for name in names):
        return False
    wanted = [str(balances[name]) for name in names] + [str(ledger.answer)]
    return [total["left"], total["right"], total["result"]] == wanted


def draw_ledger(rng: random.Random, num_steps: int, people: Sequence[str]) -> Ledger | None:
    """Draws a ledger with so many steps; None where the draw runs into a limit."""
    num_accounts = rng.randint(2, 4) if num_steps > 2 else rng.randint(1, 2)
    names = distinct(tuple(people), num_accounts, rng)
    balances = {name: rng.randint(*START_BALANCES) for name in names}
    together = num_accounts > 1 and rng.random() < TOGETHER_SHARE
    left = num_steps - together
    amounts = rng.sample(range(1, MAX_CHANGE + 1), min(left, MAX_CHANGE))
    current, events = dict(balances), []
    while left:
        name, amount = rng.choice(names), amounts.pop()
        if left >= 2 and num_accounts > 1 and rng.random() < TRANSFER_SHARE:
            other = rng.choice([each for each in names if each != name])
            changes: tuple[Change, ...] = (Change(name, -amount), Change(other, amount))
        else:
            changes = (Change(name, rng.choice((-amount, amount))),)
        for change in changes:
            current[change.name] += change.amount
            if not 1 <= current[change.name] <= MAX_BALANCE:
                return None
        events.append(Event(changes))
        left -= len(changes)
    asked = distinct(tuple(names), 2 if together else 1, rng)
    ledger = Ledger(balances, tuple(events), tuple(asked))
    return ledger if ledger.answer <= MAX_SUM else None


def write_answer(ledger: Ledger, rng: random.Random) -> str:
    """Writes a right answer; its free choices are drawn."""
    balances = dict(ledger.balances)
    changes = list(ledger.changes)
    if rng.random() < FREE_ORDER_SHARE:
        changes = merge_accounts(changes, rng)
    lines = []
    for name, change in changes:
        before = balances[name]
        balances[name] = before + change
        lines.append(write_line(name, before, change, rng))
    if len(ledger.asked) == 2:
        one, two = ledger.asked
        lines.append(write_sum(one, balances[one], two, balances[two]))
    return " ".join([*lines, f"#### {ledger.answer}"])


def write_line(name: str, before: int, change: int, rng: random.Random) -> str:
    """Writes one step; its free choices are drawn."""
    verb = rng.choice(WRITTEN_GAINS if change > 0 else WRITTEN_LOSSES)
    after, sign = before + change, "+" if change > 0 else "-"
    equation = f"{before} {sign} {abs(change)} = {after}"
    return (
        f"{name} {verb} {abs(change)} : {equation} , {rng.choice(CONNECTIVES)} {name} has {after} ."
    )


def write_sum(one: str, left: int, other: str, right: int) -> str:
    """Writes what two accounts have together."""
    total = left + right
    return f"{one} and {other} : {left} + {right} = {total} , so together they have {total} ."


def merge_accounts(changes: Sequence[Change], rng: random.Random) -> list[Change]:
    """Draws one of the orders that keep the order within each account."""
    names = [change.name for change in changes]
    rng.shuffle(names)
    due = {name: [each for each in changes if each.name == name] for name in names}
    return [due[name].pop(0) for name in names]


def write_question(ledger: Ledger, rng: random.Random, thing: str) -> str:
    """Writes a question: where clauses stand, how they are joined and worded is drawn."""
    clauses = clauses_of(ledger, rng, thing)
    text = clauses[0]
    for clause in clauses[1:]:
        joint = rng.choices((" . ", " , ", " and ", " . then ", " , and "), (10, 2, 1, 2, 1))[0]
        text += joint + clause
    things = rng.choice((f"{thing} ", f"{thing} ", ""))
    if len(ledger.asked) == 1:
        tail = rng.choice(("have", "have now", "have at the end"))
        return f"{text} . how many {things}does {ledger.asked[0]} {tail} ?"
    tail = rng.choice(("have together", "have in total", "now have together"))
    return f"{text} . how many {things}do {' and '.join(ledger.asked)} {tail} ?"


def clauses_of(ledger: Ledger, rng: random.Random, thing: str) -> list[str]:
    """Returns the clauses in order; an account is introduced before it changes."""
    late = rng.random() < 0.3
    unknown = dict(ledger.balances)
    clauses = [] if late else introduce(unknown, list(unknown), rng, thing)
    for event in ledger.events:
        clauses += introduce(unknown, [change.name for change in event.changes], rng, thing)
        clauses.append(tell(event, rng, thing))
    return clauses + introduce(unknown, list(unknown), rng, thing)


def introduce(
    unknown: dict[str, int], names: Sequence[str], rng: random.Random, thing: str
) -> list[str]:
    """Says what accounts start with, those that are not known yet, and marks them known."""
    clauses = []
    for name in names:
        if name in unknown:
            verb = rng.choice(("has", "has", "had", "owns"))
            clauses.append(f"{name} {verb} {unknown.pop(name)}{rng.choice(('', f' {thing}'))}")
    return clauses


def tell(event: Event, rng: random.Random, thing: str) -> str:
    """Says what happens."""
    things = rng.choice(("", f" {thing}"))
    if len(event.changes) == 2:
        (giver, _), (taker, amount) = event.changes
        if rng.random() < 0.3:
            return f"{taker} {rng.choice(('gets', 'takes'))} {amount}{things} from {giver}"
        return f"{giver} {rng.choice(GIVE_VERBS)} {amount}{things} to {taker}"
    ((name, change),) = event.changes
    verb = rng.choice(GAIN_VERBS if change > 0 else LOSS_VERBS)
    more = rng.choice(("", "", " more")) if change > 0 else ""
    return f"{name} {verb} {abs(change)}{more}{things}"

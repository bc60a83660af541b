"""Templates of word problems, and draws of their numbers within a world of small numbers.

A plan is a template's steps over one list of values: slots first, then constants, then results.
Each step is read as a sum or a product: `l - r = o` is `l = o + r`, `l / r = o` is `l = o * r`.
"""

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from eval.tasks.grammar import one_line, read_world, words_in

WIDE_WORLD = 999
MIN_TUPLES = 500
MAX_DRAWS = 20_000
MAX_FRUITLESS = 1_000

COMPUTE: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}

Uniform = Callable[[], float]
Choices = Callable[[int], Sequence[int]]


class SolutionLine(NamedTuple):
    """One line of a solution: `prefix left operator right = result`.

    An operand is a number slot, an earlier result (`s1`) or a constant (`2`).
    """

    prefix: str
    left: str
    operator: str
    right: str


@dataclass(frozen=True, eq=False)
class Template:
    """A family of word problems that differ in numbers, people and objects only.

    `slots` has the range of each number slot in the world of three-digit numbers, in order. A
    `held_out` family belongs to the split `test_template` instead of `train`.
    """

    id: str
    slots: Mapping[str, tuple[int, int]]
    question: str
    steps: tuple[SolutionLine, ...]
    held_out: bool

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Numbers that occur in the steps but in no slot, such as the 2 of "half of"."""
        operands = {operand for step in self.steps for operand in (step.left, step.right)}
        return tuple(sorted(int(operand) for operand in operands if operand.isdigit()))

    @cached_property
    def answer(self) -> str:
        """Text of the answer with its slots."""
        lines = [
            f"{step.prefix} {named(step.left)} {step.operator} {named(step.right)} = {{s{i}}} ."
            for i, step in enumerate(self.steps, start=1)
        ]
        return " ".join([*lines, f"#### {{s{len(lines)}}}"])

    def words(self) -> set[str]:
        """Returns every word that question and answer can contain besides slots and marks."""
        return words_in(self.question, self.answer)


def named(operand: str) -> str:
    """Returns an operand as a format string has it: constants as they are, otherwise a slot."""
    return operand if operand.isdigit() else f"{{{operand}}}"


@cache
def templates() -> Mapping[str, Template]:
    """Returns the templates by their ids."""
    found = {}
    for table in read_world("word_problems")["template"]:
        parts = (line.split(" | ") for line in table["steps"])
        steps = tuple(SolutionLine(prefix, *equation.split()) for prefix, equation in parts)
        held_out = table.get("held_out", False)
        slots = {name: tuple(bounds) for name, bounds in table["slots"].items()}
        question = one_line(table["question"])
        found[table["id"]] = Template(table["id"], slots, question, steps, held_out)
    return found


class Interval(NamedTuple):
    """The whole numbers from `least` to `greatest`; empty if `least > greatest`."""

    least: int
    greatest: int

    def meet(self, other: "Interval") -> "Interval":
        return Interval(max(self.least, other.least), min(self.greatest, other.greatest))

    def plus(self, other: "Interval") -> "Interval":
        return Interval(self.least + other.least, self.greatest + other.greatest)

    def minus(self, other: "Interval") -> "Interval":
        return Interval(self.least - other.greatest, self.greatest - other.least)

    def times(self, other: "Interval") -> "Interval":
        return Interval(self.least * other.least, self.greatest * other.greatest)

    def over(self, other: "Interval") -> "Interval":
        return Interval(-(-self.least // other.greatest), self.greatest // other.least)


class StepPlan(NamedTuple):
    """One step as indices into the values; `fresh` operands are slots that this step draws."""

    left: int
    operator: str
    right: int
    result: int
    fresh: frozenset[int]


class SlotPlan(NamedTuple):
    """How to draw one slot: its index, and its possible numbers, given the value of `known`."""

    slot: int
    known: int
    choices: Choices


class NumberPlan(NamedTuple):
    """How to draw the numbers of a template in one world.

    Values are in the order of `names`: slots, constants, results (`s1`, ...). `start` has the
    constants in place; each step comes with the slots that it draws; `ranges` are the limits of the
    values.
    """

    template: Template
    names: tuple[str, ...]
    start: tuple[int, ...]
    steps: tuple[tuple[StepPlan, tuple[SlotPlan, ...]], ...]
    ranges: Sequence[Interval]
    max_factor: int


@cache
def plan_of(template: Template, max_value: int, max_factor: int) -> NumberPlan | None:
    """Returns the plan of a template, or None if the world is too narrow for it."""
    results = [f"s{i}" for i in range(1, len(template.steps) + 1)]
    constants = [str(constant) for constant in template.constants]
    names = (*template.slots, *constants, *results)
    steps = index_steps(template, names)
    ranges = [clipped(*limits, max_value) for limits in template.slots.values()]
    ranges += [Interval(constant, constant) for constant in template.constants]
    ranges += [Interval(1, max_value) for _ in results]
    if not tighten(ranges, steps, max_factor):
        return None
    start = tuple(int(name) if name.isdigit() else 0 for name in names)
    planned = tuple((step, slots_of(step, ranges, max_factor)) for step in steps)
    plan = NumberPlan(template, names, start, planned, ranges, max_factor)
    return plan if is_rich_enough(plan) else None


def index_steps(template: Template, names: tuple[str, ...]) -> list[StepPlan]:
    """Replaces the operands of the steps by their indices."""
    index = {name: i for i, name in enumerate(names)}
    undrawn = {index[slot] for slot in template.slots}
    steps = []
    for number, (_, left, symbol, right) in enumerate(template.steps, start=1):
        fresh = frozenset({index[left], index[right]} & undrawn)
        undrawn -= fresh
        steps.append(StepPlan(index[left], symbol, index[right], index[f"s{number}"], fresh))
    return steps


def clipped(least: int, greatest: int, max_value: int) -> Interval:
    """Clips a range of the three-digit world; its lower end shrinks in proportion."""
    scaled = max(2, least * max_value // WIDE_WORLD)
    return Interval(min(least, scaled), min(greatest, max_value))


def tighten(ranges: list[Interval], steps: list[StepPlan], max_factor: int) -> bool:
    """Narrows ranges in place until no step narrows them further; False if one becomes empty."""
    before: list[Interval] = []
    while before != ranges:
        before = list(ranges)
        for step in steps:
            for index, bound in bounds(step, ranges, max_factor):
                ranges[index] = ranges[index].meet(bound)
                if ranges[index].least > ranges[index].greatest:
                    return False
    return True


def bounds(
    step: StepPlan, ranges: Sequence[Interval], max_factor: int
) -> list[tuple[int, Interval]]:
    """Returns the ranges that a step allows its three values."""
    total, one, other = step.left, step.result, step.right
    if step.operator in "+*":
        total, one = one, total
    whole, x, y = ranges[total], ranges[one], ranges[other]
    if step.operator in "+-":
        return [(total, x.plus(y)), (one, whole.minus(y)), (other, whole.minus(x))]
    found = [(total, x.times(y)), (one, whole.over(y)), (other, whole.over(x))]
    factor = Interval(1, max_factor)
    if step.operator == "/" or x.least > max_factor:
        found.append((other, factor))
    elif y.least > max_factor:
        found.append((one, factor))
    return found


def slots_of(step: StepPlan, ranges: Sequence[Interval], max_factor: int) -> tuple[SlotPlan, ...]:
    """Returns how to draw the fresh slots of a step: the left one first, which then is known."""
    left, right = step.left, step.right
    if not step.fresh:
        return ()
    if step.fresh == {left}:
        return (SlotPlan(left, right, choices_of(step, ranges, max_factor, slot=left)),)
    drawn = SlotPlan(right, left, choices_of(step, ranges, max_factor, slot=right))
    if step.fresh == {right}:
        return (drawn,)
    every = range(ranges[left].least, ranges[left].greatest + 1)
    return (SlotPlan(left, left, lambda _: every), drawn)


def choices_of(
    step: StepPlan, ranges: Sequence[Interval], max_factor: int, *, slot: int
) -> Choices:
    """Returns the function that lists the possible values of an operand, given the other one."""
    known = step.right if slot == step.left else step.left

    @cache
    def choices(value: int) -> Sequence[int]:
        narrowed = list(ranges)
        narrowed[known] = Interval(value, value)
        for index, bound in bounds(step, narrowed, max_factor):
            if index == slot:
                narrowed[slot] = narrowed[slot].meet(bound)
        least, greatest = narrowed[slot]
        if step.operator != "/":
            return range(least, greatest + 1)
        if slot == step.left:
            return range(-(-least // value) * value, greatest + 1, value)
        return [divisor for divisor in range(least, greatest + 1) if value % divisor == 0]

    return choices


def draw(plan: NumberPlan, uniform: Uniform) -> list[int] | None:
    """Draws the values of a problem; None if the attempt fails and should be repeated."""
    values = list(plan.start)
    for step, slots in plan.steps:
        for slot, known, choices in slots:
            possible = choices(values[known])
            if not possible:
                return None
            values[slot] = possible[int(uniform() * len(possible))]
        left, right = values[step.left], values[step.right]
        if not slots and not is_allowed(step.operator, left, right, plan.max_factor):
            return None
        values[step.result] = result = COMPUTE[step.operator](left, right)
        least, greatest = plan.ranges[step.result]
        if not least <= result <= greatest:
            return None
    return values


def is_allowed(symbol: str, left: int, right: int, max_factor: int) -> bool:
    """Says whether the factors of a product are small enough, and whether a division is exact."""
    if symbol == "*":
        return min(left, right) <= max_factor
    return symbol != "/" or (left % right == 0 and right <= max_factor)


def is_rich_enough(plan: NumberPlan) -> bool:
    """Says whether 500 number tuples are found in 20,000 attempts, each in 1,000 attempts."""
    uniform = random.Random("is_rich_enough").random
    found: set[tuple[int, ...]] = set()
    last = 0
    for attempt in range(MAX_DRAWS):
        values = draw(plan, uniform)
        if values is not None and tuple(values) not in found:
            found.add(tuple(values))
            last = attempt
        if len(found) >= MIN_TUPLES or attempt - last > MAX_FRUITLESS:
            break
    return len(found) >= MIN_TUPLES

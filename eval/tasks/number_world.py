"""Templates of word problems, and draws of their numbers from 1 to `MAX_VALUE`.

The numbers of a problem have names: slots, and the results `s1`, `s2`, ...
Each step is read as a sum or a product: `l - r = o` is `l = o + r`, `l / r = o` is `l = o * r`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from eval.tasks.grammar import one_line, read_world, words_in

MAX_VALUE = 100
"""Greatest number of a problem."""
MAX_FACTOR = 9
"""Greatest value of a product's smaller factor, and of a divisor."""

COMPUTE: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}

UniformDraw = Callable[[], float]
NamedNumbers = dict[str, int]


class Step(NamedTuple):
    """One line of a solution: `prefix left operator right = result`, numbers by their names."""

    prefix: str
    left: str
    operator: str
    right: str
    result: str


@dataclass(frozen=True, eq=False)
class Template:
    """A family of word problems that differ in numbers, people and objects only.

    `slots` has the range of each number slot, in order.
    """

    id: str
    slots: Mapping[str, tuple[int, int]]
    question: str
    steps: tuple[Step, ...]

    @cached_property
    def answer(self) -> str:
        """Text of the answer with its slots."""
        lines = [
            f"{step.prefix} {{{step.left}}} {step.operator} {{{step.right}}} = {{{step.result}}} ."
            for step in self.steps
        ]
        return " ".join([*lines, f"#### {{{self.steps[-1].result}}}"])

    def words(self) -> set[str]:
        """Returns every word that question and answer can contain besides slots and marks."""
        return words_in(self.question, self.answer)


@cache
def templates() -> Mapping[str, Template]:
    """Returns the templates by their ids."""
    by_id = {}
    for table in read_world("word_problems")["template"]:
        steps = []
        for i, line in enumerate(table["steps"], start=1):
            prefix, equation = line.split(" | ")
            left, symbol, right = equation.split()
            steps.append(Step(prefix, left, symbol, right, f"s{i}"))
        slots = {name: tuple(bounds) for name, bounds in table["slots"].items()}
        question = one_line(table["question"])
        by_id[table["id"]] = Template(table["id"], slots, question, tuple(steps))
    return by_id


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


Ranges = dict[str, Interval]
PossibleNumbers = Callable[[NamedNumbers], Sequence[int]]


class NumberPlan(NamedTuple):
    """How to draw the numbers of a template.

    Attributes:
        steps: Each step with the slots that it draws, and the possible numbers of each slot, given
            the numbers that were drawn before.
        ranges: The limits of every number.
    """

    template: Template
    steps: list[tuple[Step, dict[str, PossibleNumbers]]]
    ranges: Ranges


@cache
def plan_of(template: Template) -> NumberPlan:
    """Returns the plan of a template."""
    ranges = {slot: Interval(*limits) for slot, limits in template.slots.items()}
    ranges |= {step.result: Interval(1, MAX_VALUE) for step in template.steps}
    _tighten(ranges, template.steps)
    plan = NumberPlan(template, [], ranges)
    undrawn = set(template.slots)
    for step in template.steps:
        slots: dict[str, PossibleNumbers] = {}
        for slot, other in ((step.left, step.right), (step.right, step.left)):
            if slot in undrawn:
                undrawn.remove(slot)
                known = None if other in undrawn else other
                slots[slot] = possible_numbers(step, slot, known, ranges)
        plan.steps.append((step, slots))
    return plan


def _tighten(ranges: Ranges, steps: Sequence[Step]) -> None:
    """Narrows ranges in place until none changes."""
    before: Ranges = {}
    while before != ranges:
        before = dict(ranges)
        for step in steps:
            for name, bound in bounds(step, ranges):
                ranges[name] = ranges[name].meet(bound)


def bounds(step: Step, ranges: Ranges) -> list[tuple[str, Interval]]:
    """Returns the ranges that a step allows its three numbers."""
    total, first, second = step.left, step.result, step.right
    if step.operator in "+*":
        total, first = first, total
    z, x, y = ranges[total], ranges[first], ranges[second]
    if step.operator in "+-":
        return [(total, x.plus(y)), (first, z.minus(y)), (second, z.minus(x))]
    limits = [(total, x.times(y)), (first, z.over(y)), (second, z.over(x))]
    factor = Interval(1, MAX_FACTOR)
    if step.operator == "/" or x.least > MAX_FACTOR:
        limits.append((second, factor))
    elif y.least > MAX_FACTOR:
        limits.append((first, factor))
    return limits


def possible_numbers(step: Step, slot: str, known: str | None, ranges: Ranges) -> PossibleNumbers:
    """Returns the function that lists the possible numbers of `slot`, given `known`, if any."""
    if known is None:
        every = range(ranges[slot].least, ranges[slot].greatest + 1)
        return lambda numbers: every

    @cache
    def possible(value: int) -> Sequence[int]:
        narrowed = {**ranges, known: Interval(value, value)}
        for name, bound in bounds(step, narrowed):
            if name == slot:
                narrowed[slot] = narrowed[slot].meet(bound)
        least, greatest = narrowed[slot]
        if step.operator != "/":
            return range(least, greatest + 1)
        if slot == step.left:
            return range(-(-least // value) * value, greatest + 1, value)
        return [divisor for divisor in range(least, greatest + 1) if value % divisor == 0]

    return lambda numbers: possible(numbers[known])


def draw(plan: NumberPlan, uniform: UniformDraw) -> NamedNumbers | None:
    """Draws the numbers of a problem; None if the attempt fails and should be repeated."""
    numbers: NamedNumbers = {}
    for step, slots in plan.steps:
        for slot, choices in slots.items():
            possible = choices(numbers)
            if not possible:
                return None
            numbers[slot] = possible[int(uniform() * len(possible))]
        left, right = numbers[step.left], numbers[step.right]
        if not slots and not is_allowed(step.operator, left, right):
            return None
        numbers[step.result] = result = COMPUTE[step.operator](left, right)
        least, greatest = plan.ranges[step.result]
        if not least <= result <= greatest:
            return None
    return numbers


def is_allowed(symbol: str, left: int, right: int) -> bool:
    """Says whether the factors of a product are small enough, and whether a division is exact."""
    if symbol == "*":
        return min(left, right) <= MAX_FACTOR
    return symbol != "/" or (left % right == 0 and right <= MAX_FACTOR)

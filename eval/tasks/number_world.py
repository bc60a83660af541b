"""Templates of word problems, and draws of their numbers within a world of small numbers.

The numbers of a problem have names: slots, constants such as `2`, and the results `s1`, `s2`, ...
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
Numbers = dict[str, int]


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

    `slots` has the range of each number slot in the world of three-digit numbers, in order. A
    `held_out` family belongs to the split `test_template` instead of `train`.
    """

    id: str
    slots: Mapping[str, tuple[int, int]]
    question: str
    steps: tuple[Step, ...]
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
            f"{step.prefix} {write(step.left)} {step.operator} {write(step.right)} = "
            f"{write(step.result)} ."
            for step in self.steps
        ]
        return " ".join([*lines, f"#### {write(self.steps[-1].result)}"])

    def words(self) -> set[str]:
        """Returns every word that question and answer can contain besides slots and marks."""
        return words_in(self.question, self.answer)


def write(number: str) -> str:
    """Returns a number as a format string writes it: a constant as it is, a name as a slot."""
    return number if number.isdigit() else f"{{{number}}}"


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
        held_out = table.get("held_out", False)
        slots = {name: tuple(bounds) for name, bounds in table["slots"].items()}
        question = one_line(table["question"])
        by_id[table["id"]] = Template(table["id"], slots, question, tuple(steps), held_out)
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
Choices = Callable[[Numbers], Sequence[int]]


class NumberPlan(NamedTuple):
    """How to draw the numbers of a template in one world.

    Attributes:
        steps: Each step with the slots that it draws, and the possible numbers of each slot, given
            the numbers that were drawn before.
        ranges: The limits of every number.
    """

    template: Template
    steps: list[tuple[Step, dict[str, Choices]]]
    ranges: Ranges
    max_factor: int


@cache
def plan_of(template: Template, max_value: int, max_factor: int) -> NumberPlan | None:
    """Returns the plan of a template, or None if the world is too narrow for it."""
    ranges = {slot: clipped(*limits, max_value) for slot, limits in template.slots.items()}
    ranges |= {str(constant): Interval(constant, constant) for constant in template.constants}
    ranges |= {step.result: Interval(1, max_value) for step in template.steps}
    if not tighten(ranges, template.steps, max_factor):
        return None
    plan = NumberPlan(template, [], ranges, max_factor)
    undrawn = set(template.slots)
    for step in template.steps:
        slots: dict[str, Choices] = {}
        for slot, other in ((step.left, step.right), (step.right, step.left)):
            if slot in undrawn:
                undrawn.remove(slot)
                known = None if other in undrawn else other
                slots[slot] = choices_of(step, slot, known, ranges, max_factor)
        plan.steps.append((step, slots))
    return plan if is_rich_enough(plan) else None


def clipped(least: int, greatest: int, max_value: int) -> Interval:
    """Clips a range of the three-digit world; the lower end shrinks in proportion."""
    scaled = max(2, least * max_value // WIDE_WORLD)
    return Interval(min(least, scaled), min(greatest, max_value))


def tighten(ranges: Ranges, steps: Sequence[Step], max_factor: int) -> bool:
    """Narrows ranges in place until none changes; returns False if a range becomes empty."""
    before: Ranges = {}
    while before != ranges:
        before = dict(ranges)
        for step in steps:
            for name, bound in bounds(step, ranges, max_factor):
                ranges[name] = ranges[name].meet(bound)
                if ranges[name].least > ranges[name].greatest:
                    return False
    return True


def bounds(step: Step, ranges: Ranges, max_factor: int) -> list[tuple[str, Interval]]:
    """Returns the ranges that a step allows its three numbers."""
    total, first, second = step.left, step.result, step.right
    if step.operator in "+*":
        total, first = first, total
    z, x, y = ranges[total], ranges[first], ranges[second]
    if step.operator in "+-":
        return [(total, x.plus(y)), (first, z.minus(y)), (second, z.minus(x))]
    limits = [(total, x.times(y)), (first, z.over(y)), (second, z.over(x))]
    factor = Interval(1, max_factor)
    if step.operator == "/" or x.least > max_factor:
        limits.append((second, factor))
    elif y.least > max_factor:
        limits.append((first, factor))
    return limits


def choices_of(
    step: Step, slot: str, known: str | None, ranges: Ranges, max_factor: int
) -> Choices:
    """Returns the function that lists the possible numbers of `slot`, given `known`, if any."""
    if known is None:
        every = range(ranges[slot].least, ranges[slot].greatest + 1)
        return lambda numbers: every

    @cache
    def possible(value: int) -> Sequence[int]:
        narrowed = {**ranges, known: Interval(value, value)}
        for name, bound in bounds(step, narrowed, max_factor):
            if name == slot:
                narrowed[slot] = narrowed[slot].meet(bound)
        least, greatest = narrowed[slot]
        if step.operator != "/":
            return range(least, greatest + 1)
        if slot == step.left:
            return range(-(-least // value) * value, greatest + 1, value)
        return [divisor for divisor in range(least, greatest + 1) if value % divisor == 0]

    return lambda numbers: possible(numbers[known])


def draw(plan: NumberPlan, uniform: Uniform) -> Numbers | None:
    """Draws the numbers of a problem; None if the attempt fails and should be repeated."""
    numbers = {str(constant): constant for constant in plan.template.constants}
    for step, slots in plan.steps:
        for slot, choices in slots.items():
            possible = choices(numbers)
            if not possible:
                return None
            numbers[slot] = possible[int(uniform() * len(possible))]
        left, right = numbers[step.left], numbers[step.right]
        if not slots and not is_allowed(step.operator, left, right, plan.max_factor):
            return None
        numbers[step.result] = result = COMPUTE[step.operator](left, right)
        least, greatest = plan.ranges[step.result]
        if not least <= result <= greatest:
            return None
    return numbers


def is_allowed(symbol: str, left: int, right: int, max_factor: int) -> bool:
    """Says whether the factors of a product are small enough, and whether a division is exact."""
    if symbol == "*":
        return min(left, right) <= max_factor
    return symbol != "/" or (left % right == 0 and right <= max_factor)


def is_rich_enough(plan: NumberPlan) -> bool:
    """Says whether 20,000 draws find 500 problems, with a new one at least every 1,000 draws."""
    uniform = random.Random("is_rich_enough").random
    seen: set[tuple[int, ...]] = set()
    last = 0
    for attempt in range(MAX_DRAWS):
        numbers = draw(plan, uniform)
        if numbers is not None and tuple(numbers.values()) not in seen:
            seen.add(tuple(numbers.values()))
            last = attempt
        if len(seen) >= MIN_TUPLES or attempt - last > MAX_FRUITLESS:
            break
    return len(seen) >= MIN_TUPLES

"""Draws the numbers of a word problem so that every value stays within a world of small numbers.

A plan is a template's steps over one list of values: slots first, then constants, then results.
Each step is read as a sum or a product: `l - r = o` is `l = o + r`, `l / r = o` is `l = o * r`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from eval.tasks.word_problem_templates import Template

WIDE_WORLD = 999
MIN_TUPLES = 500
MAX_DRAWS = 20_000
MAX_FRUITLESS = 1_000

Uniform = Callable[[], float]
Draw = Callable[[list[int], Uniform], bool]
"""Fills in a step's fresh slots and its result; False if the step has no solution."""


@dataclass(frozen=True)
class Interval:
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


@dataclass(frozen=True)
class StepPlan:
    """One step as indices into the values.

    Attributes:
        left: Index of the left operand.
        operator: One of `+ - * /`.
        right: Index of the right operand.
        result: Index of the result.
        fresh: The operands that are slots no earlier step has drawn.
    """

    left: int
    operator: str
    right: int
    result: int
    fresh: frozenset[int]


@dataclass(frozen=True)
class Plan:
    """How to draw the numbers of a template in one world.

    Attributes:
        names: Slots, constants and results (`s1`, ...), in the order of the values.
        start: Values before the first step; constants are in place.
        draws: One function a step.
        greatest: Greatest number that the ranges of the template allow in this world.
    """

    names: tuple[str, ...]
    start: tuple[int, ...]
    draws: tuple[Draw, ...]
    greatest: int


def plan_of(template: Template, max_value: int, max_factor: int) -> Plan | None:
    """Returns the plan of a template, or None if its ranges leave no number for some slot."""
    results = [f"s{i}" for i in range(1, len(template.steps) + 1)]
    constants = [str(constant) for constant in template.constants]
    names = (*template.slots, *constants, *results)
    steps = index_steps(template, names)
    ranges = [clipped(*limits, max_value) for limits in template.slots.values()]
    ranges += [Interval(constant, constant) for constant in template.constants]
    ranges += [Interval(1, max_value) for _ in results]
    if not tighten(ranges, steps, max_factor):
        return None
    draws = tuple(draw_of(step, ranges, max_factor) for step in steps)
    start = tuple(int(name) if name.isdigit() else 0 for name in names)
    return Plan(names, start, draws, max(interval.greatest for interval in ranges))


def index_steps(template: Template, names: tuple[str, ...]) -> list[StepPlan]:
    """Replaces the operands of the steps by their indices."""
    index = {name: i for i, name in enumerate(names)}
    undrawn = {index[slot] for slot in template.slots}
    steps = []
    for number, (_, left, operator, right) in enumerate(template.steps, start=1):
        fresh = frozenset({index[left], index[right]} & undrawn)
        undrawn -= fresh
        steps.append(StepPlan(index[left], operator, index[right], index[f"s{number}"], fresh))
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


def bounds(step: StepPlan, ranges: list[Interval], max_factor: int) -> list[tuple[int, Interval]]:
    """Returns what a step implies for the ranges of its three values."""
    total, one, other = (
        (step.result, step.left, step.right)
        if step.operator in "+*"
        else (step.left, step.result, step.right)
    )
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


def draw(plan: Plan, uniform: Uniform) -> list[int] | None:
    """Draws the values of a problem; None if the attempt fails and should be repeated."""
    values = list(plan.start)
    for step in plan.draws:
        if not step(values, uniform):
            return None
    return values


def is_rich_enough(plan: Plan) -> bool:
    """Says whether 500 different number tuples are found in 20,000 seeded attempts.

    The search gives up after 1,000 attempts in a row without a new tuple.
    """
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


def draw_of(step: StepPlan, ranges: list[Interval], max_factor: int) -> Draw:
    """Returns the function that draws a step.

    With two fresh slots the left one is drawn from its range and then taken as known.
    """
    left, right = step.left, step.right
    if step.fresh == {left, right}:
        return draw_both(left, ranges[left], draw_right(step, ranges, max_factor))
    if step.fresh == {right}:
        return draw_right(step, ranges, max_factor)
    if step.fresh == {left}:
        return draw_left(step, ranges, max_factor)
    return draw_none(step, ranges[step.result], max_factor)


def draw_right(step: StepPlan, ranges: list[Interval], max_factor: int) -> Draw:
    """Returns the draw of a step whose right operand alone is fresh."""
    left, right, result = step.left, step.right, step.result
    if step.operator == "*":
        return draw_factor(left, right, result, ranges, max_factor=max_factor)
    if step.operator == "/":
        return draw_divisor(left, right, result, ranges, max_factor=max_factor)
    return draw_term(left, right, result, ranges, signs=(1, 1 if step.operator == "+" else -1))


def draw_left(step: StepPlan, ranges: list[Interval], max_factor: int) -> Draw:
    """Returns the draw of a step whose left operand alone is fresh."""
    left, right, result = step.left, step.right, step.result
    if step.operator == "*":
        return draw_factor(right, left, result, ranges, max_factor=max_factor)
    if step.operator == "/":
        return draw_dividend(right, left, result, ranges)
    return draw_term(right, left, result, ranges, signs=(1 if step.operator == "+" else -1, 1))


def draw_both(first: int, allowed: Interval, rest: Draw) -> Draw:
    """Returns a draw that takes one slot from its range and leaves the other to the rest."""
    least, count = allowed.least, allowed.greatest - allowed.least + 1

    def draw_first(values: list[int], uniform: Uniform) -> bool:
        values[first] = least + int(uniform() * count)
        return rest(values, uniform)

    return draw_first


def draw_none(step: StepPlan, allowed: Interval, max_factor: int) -> Draw:
    """Returns the draw of a step whose operands are both known."""
    left, right, result = step.left, step.right, step.result
    compute = COMPUTE[step.operator]
    least, greatest = allowed.least, allowed.greatest
    is_product, is_quotient = step.operator == "*", step.operator == "/"

    def draw_result(values: list[int], uniform: Uniform) -> bool:
        a, b = values[left], values[right]
        if is_product and min(a, b) > max_factor:
            return False
        if is_quotient and (a % b or b > max_factor):
            return False
        values[result] = compute(a, b)
        return least <= values[result] <= greatest

    return draw_result


COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


def draw_term(
    known: int, fresh: int, result: int, ranges: list[Interval], *, signs: tuple[int, int]
) -> Draw:
    """Draws y of `result = p x + q y`, where x is known and the signs p and q are 1 or -1."""
    p, q = signs
    allowed, sums = ranges[fresh], ranges[result]
    floor, ceiling = (sums.least, sums.greatest) if q > 0 else (-sums.greatest, -sums.least)
    shift = p * q

    def draw_y(values: list[int], uniform: Uniform) -> bool:
        x = values[known]
        start = max(allowed.least, floor - shift * x)
        count = min(allowed.greatest, ceiling - shift * x) - start + 1
        if count < 1:
            return False
        values[fresh] = y = start + int(uniform() * count)
        values[result] = p * x + q * y
        return True

    return draw_y


def draw_factor(
    known: int, fresh: int, result: int, ranges: list[Interval], *, max_factor: int
) -> Draw:
    """Draws y of `known * y = result`; the smaller factor is at most `max_factor`."""
    low, high = ranges[fresh].least, ranges[fresh].greatest
    least, greatest = ranges[result].least, ranges[result].greatest
    low_high = min(high, max_factor)

    def draw_y(values: list[int], uniform: Uniform) -> bool:
        x = values[known]
        start = max(low, -(-least // x))
        count = min(high if x <= max_factor else low_high, greatest // x) - start + 1
        if count < 1:
            return False
        values[fresh] = y = start + int(uniform() * count)
        values[result] = x * y
        return True

    return draw_y


def draw_divisor(
    known: int, fresh: int, result: int, ranges: list[Interval], *, max_factor: int
) -> Draw:
    """Draws y of `known / y = result` among the divisors of the known value."""
    allowed, quotients = ranges[fresh], ranges[result]
    divisors = [
        [
            y
            for y in range(allowed.least, min(allowed.greatest, max_factor) + 1)
            if x % y == 0 and quotients.least <= x // y <= quotients.greatest
        ]
        for x in range(ranges[known].greatest + 1)
    ]

    def draw_y(values: list[int], uniform: Uniform) -> bool:
        x = values[known]
        choices = divisors[x]
        if not choices:
            return False
        values[fresh] = y = choices[int(uniform() * len(choices))]
        values[result] = x // y
        return True

    return draw_y


def draw_dividend(known: int, fresh: int, result: int, ranges: list[Interval]) -> Draw:
    """Draws x of `x / known = result`."""
    low, high = ranges[fresh].least, ranges[fresh].greatest
    least, greatest = ranges[result].least, ranges[result].greatest

    def draw_x(values: list[int], uniform: Uniform) -> bool:
        y = values[known]
        start = max(least, -(-low // y))
        count = min(greatest, high // y) - start + 1
        if count < 1:
            return False
        values[result] = quotient = start + int(uniform() * count)
        values[fresh] = quotient * y
        return True

    return draw_x

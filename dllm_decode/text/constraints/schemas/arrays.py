"""Writes arrays as automata over bytes."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from dllm_decode.text.constraints.machines.octets import (
    NO_TEXT,
    Builder,
    Octets,
    Row,
    overlaid,
    row_of,
    tagged_union,
)
from dllm_decode.text.constraints.machines.tables import Numbers
from dllm_decode.text.constraints.schemas.values import Arrays

_OPEN, _COMMA, _CLOSE = map(ord, "[,]")
# Items without an order, up to this number of them; more are written in the order of the schema.
_MAX_SETS = 6


class ArrayPlan(NamedTuple):
    """The parts of an array.

    Attributes:
        items: The texts of each of the first items, and of all further ones; if items are counted,
            of items that count, and of others.
        least: Fewest items.
        most: Most items; `None` for no bound.
        least_counted: Fewest items that count.
        most_counted: Most of them; `None` for no bound.
    """

    items: Sequence[tuple[Octets, ...]]
    least: int
    most: int | None
    least_counted: int
    most_counted: int | None

    @property
    def num_places(self) -> int:
        """The number of items from which on the next item makes no difference."""
        return max(len(self.items) - 1, self.least, 1) if self.most is None else self.most

    @property
    def num_counts(self) -> int:
        """The count from which on a further item that counts makes no difference."""
        return max(self.least_counted, self.most_counted or 0)

    def items_at(self, place: int, count: int) -> tuple[Octets, ...]:
        """Returns the texts of an item before which `place` items are, of which some count."""
        octets = self.items[min(place, len(self.items) - 1)]
        return (NO_TEXT, *octets[1:]) if count == self.most_counted else octets

    def shortened(self) -> "ArrayPlan":
        """Returns the plan with no more items than there are texts for."""
        for place, octets in enumerate(self.items):
            if all(part.is_empty for part in octets) and (self.most is None or place < self.most):
                return self._replace(most=place)
        return self


def write_array(plan: ArrayPlan, space: Octets) -> Octets:
    """Returns the automaton of arrays, with white space where it may be."""
    plan = plan.shortened()
    if plan.most is not None and plan.most < plan.least:
        return NO_TEXT
    builder = Builder()
    final = builder.end()
    # After some items of which some count: the state, and the state after a comma.
    after: dict[tuple[int, int], int] = {}
    commas: dict[tuple[int, int], int] = {}
    for place, count in product(range(plan.num_places + 1), range(plan.num_counts + 1)):
        row = _closing(plan, place, count, final)
        if place != plan.most:
            commas[place, count] = row[_COMMA] = builder.reserve()
        after[place, count] = builder.before(space, builder.state(row))
    joined: dict[tuple[int, ...], tuple[Octets, Numbers]] = {}
    first = row_of({})
    for (place, count), comma in commas.items():
        octets = plan.items_at(place, count)
        if all(part.is_empty for part in octets):
            continue
        key = tuple(map(id, octets))
        if key not in joined:
            joined[key] = tagged_union(octets)
        numbers = [min(count + 1, plan.num_counts), count][-len(octets) :]
        targets = tuple(after[min(place + 1, plan.num_places), number] for number in numbers)
        start = builder.before_each(*joined[key], targets)
        builder.fill(comma, builder.row(builder.before(space, start)))
        if (place, count) == (0, 0):
            first = builder.row(start)
    first = overlaid(first, _closing(plan, 0, 0, final))
    begin = builder.before(space, builder.state(first))
    return builder.done(builder.state(row_of({_OPEN: begin})))


def _closing(plan: ArrayPlan, place: int, count: int, final: int) -> Row:
    """Returns the row after some items, with the end of the array if it may end there."""
    has_most = plan.most_counted is None or count <= plan.most_counted
    is_possible = place >= plan.least and count >= plan.least_counted and has_most
    return row_of({_CLOSE: final} if is_possible else {})


def unique_items(array: Arrays, texts: Sequence[bytes], space: Octets) -> Octets:
    """Returns the automaton of arrays whose items are different ones of some texts.

    A few texts may be in any order; more are in the order in which they are given.
    """
    most = len(texts) if array.most is None else min(len(texts), array.most)
    has_sets = len(texts) <= _MAX_SETS
    builder = Builder()
    final = builder.end()
    known: dict[tuple[int, int], int] = {}

    def after(used: int, count: int) -> int:
        """Returns the state after some items; `used` has a bit for each text that is used up."""
        if (used, count) not in known:
            row = row_of({_CLOSE: final} if count >= array.least else {})
            start = item(used, count)
            if start >= 0:
                row[_COMMA] = builder.before(space, start)
            known[used, count] = builder.before(space, builder.state(row))
        return known[used, count]

    def item(used: int, count: int) -> int:
        """Returns the state before the next item; -1 if there is none."""
        start = -1
        for number, text in enumerate(texts if count < most else ()):
            if not used >> number & 1:
                now_used = used | 1 << number if has_sets else (2 << number) - 1
                start = builder.with_text(start, text, after(now_used, count + 1))
        return start

    start = item(0, 0)
    row = row_of({_CLOSE: final} if array.least == 0 else {})
    first = row if start < 0 else overlaid(builder.row(start), row)
    begin = builder.before(space, builder.state(first))
    return builder.done(builder.state(row_of({_OPEN: begin})))

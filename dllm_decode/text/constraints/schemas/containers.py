"""Writes arrays and objects as automata over bytes, from their end to their start."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from dllm_decode.text.constraints.machines.octets import (
    Builder,
    Octets,
    json_string,
    overlaid,
    row_of,
)

Key: TypeAlias = tuple[int, int]
"""What is known of the parts so far; (0, 0) if there are none."""

# Items without an order, up to this number of them; more are written in the order of the schema.
_MAX_SETS = 6


class _Container:
    """A list of parts between brackets: after each part a comma and a further part, or the end.

    Attributes:
        builder: Writes the automaton.
        after: The state after some parts.
    """

    def __init__(self, brackets: str, space: Octets) -> None:
        """Takes the white space that may be next to a bracket or a comma."""
        self.builder = Builder()
        self.after: dict[Key, int] = {}
        self._open, self._close = map(ord, brackets)
        self._space, self._final = space, self.builder.end()
        self._ends: dict[Key, dict[int, int]] = {}
        self._commas: dict[Key, int] = {}
        self._next: dict[Key, int] = {}

    def begin(self, key: Key, *, is_end: bool) -> None:
        """Adds the state after some parts, where the container may end."""
        self._ends[key] = {self._close: self._final} if is_end else {}
        self._commas[key] = self.builder.reserve()
        row = row_of({ord(","): self._commas[key], **self._ends[key]})
        self.after[key] = self.builder.before(self._space, self.builder.state(row))

    def go_on(self, key: Key, start: int) -> None:
        """Says in which state the next part begins; -1 if there is none."""
        self._next[key] = start
        begin = self.builder.before(self._space, start)
        self.builder.fill(self._commas[key], self.builder.row(begin))

    def octets(self) -> Octets:
        """Returns the automaton of the container."""
        row = overlaid(self.builder.row(self._next[0, 0]), row_of(self._ends[0, 0]))
        begin = self.builder.before(self._space, self.builder.state(row))
        return self.builder.done(self.builder.state(row_of({self._open: begin})))


class ArrayPlan(NamedTuple):
    """The parts of an array.

    Attributes:
        items: The texts of each of the first items, and of all further ones: of items that count,
            and of others.
        least: Fewest items.
        most: Most items; `None` for no bound.
        least_counted: Fewest items that count.
        most_counted: Most of them; `None` for no bound.
    """

    items: Sequence[Sequence[Octets]]
    least: int
    most: int | None
    least_counted: int
    most_counted: int | None


def write_array(plan: ArrayPlan, space: Octets) -> Octets:
    """Returns the automaton of arrays; a key is the number of items, and of those that count."""
    array = _Container("[]", space)
    builder = array.builder
    # From these numbers on, a further item makes no difference.
    last = max(len(plan.items) - 1, plan.least, 1) if plan.most is None else plan.most
    last_count = max(plan.least_counted, plan.most_counted or 0)
    for place, count in product(range(last + 1), range(last_count + 1)):
        has_most = plan.most_counted is None or count <= plan.most_counted
        is_end = place >= plan.least and count >= plan.least_counted and has_most
        array.begin((place, count), is_end=is_end)
    for place, count in array.after:
        counting, other = plan.items[min(place, len(plan.items) - 1)]
        place_after, more = min(place + 1, last), min(count + 1, last_count)
        starts = [builder.before(other, array.after[place_after, count])]
        if count != plan.most_counted:
            starts.append(builder.before(counting, array.after[place_after, more]))
        array.go_on((place, count), -1 if place == plan.most else builder.either(starts))
    return array.octets()


def unique_items(texts: Sequence[bytes], least: int, most: int, space: Octets) -> Octets:
    """Returns the automaton of arrays whose items are different ones of some texts.

    A few texts may be in any order; more are in the order in which they are given. A key has a bit
    for each text that is used up, and the number of items.
    """
    array = _Container("[]", space)

    @cache
    def after(used: int, count: int) -> int:
        array.begin((used, count), is_end=count >= least)
        starts = []
        for number, text in enumerate(texts if count < most else ()):
            if not used >> number & 1:
                now_used = used | 1 << number if len(texts) <= _MAX_SETS else (2 << number) - 1
                starts.append(array.builder.text(text, after(now_used, count + 1)))
        array.go_on((used, count), array.builder.either(starts))
        return array.after[used, count]

    after(0, 0)
    return array.octets()


class ObjectPlan(NamedTuple):
    """The parts of an object.

    Attributes:
        members: Name, texts of the value, and whether it is required, in order.
        others: Names, without quotes, and values of further members.
        least: Fewest members.
        most: Most members; `None` for no bound.
    """

    members: Sequence[tuple[str, Octets, bool]]
    others: Sequence[tuple[Octets, Octets]]
    least: int
    most: int | None


def write_object(plan: ObjectPlan, space: Octets) -> Octets:
    """Returns the automaton of objects.

    A key is the place that the next member has at least, and the number of members before it. The
    names that may follow are a trie: that of the next key with one more name.
    """
    made = _Container("{}", space)
    builder, last = made.builder, len(plan.members)
    # From this number on, a further member makes no difference.
    last_count = max(1, plan.least, plan.most or 0)
    last_required = max((n for n, member in enumerate(plan.members) if member[2]), default=-1)
    tries: dict[Key, int] = {}

    def value(octets: Octets, key: Key) -> int:
        """Returns the state after the name of a member."""
        begin = builder.before(space, builder.before(octets, made.after[key]))
        return builder.before(space, builder.text(b":", begin))

    def trie(place: int, count: int) -> int:
        """Returns the state after the quote before the next name; -1 if there is none."""
        more = min(count + 1, last_count)
        if count == plan.most:
            return -1
        if place == last:
            return builder.either(
                builder.before(names, builder.text(b'"', value(octets, (last, more))))
                for names, octets in plan.others
            )
        name, octets, is_required = plan.members[place]
        start = builder.text(json_string(name)[1:], value(octets, (place + 1, more)))
        return start if is_required else builder.either([start, tries[place + 1, count]])

    for key in product(range(last, -1, -1), range(last_count, -1, -1)):
        place, count = key
        if place == last or count <= place:
            has_most = plan.most is None or count <= plan.most
            made.begin(key, is_end=place > last_required and count >= plan.least and has_most)
            tries[key] = trie(place, count)
            made.go_on(key, builder.text(b'"', tries[key]))
    return made.octets()

"""Writes arrays and objects as automata over bytes, from their end to their start."""

import json
from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

from dllm_decode.text.constraints.machines.octets import Builder, Octets, overlaid, transitions

Key: TypeAlias = tuple[int, int]
"""Two numbers of the parts so far; (0, 0) if there are none."""

CountBounds: TypeAlias = tuple[int, int | None]
"""The fewest and the most parts; `None` for no bound."""


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
        row = transitions({ord(","): self._commas[key], **self._ends[key]})
        self.after[key] = self.builder.before(self._space, self.builder.state(row))

    def go_on(self, key: Key, start: int) -> None:
        """Says in which state the next part begins; -1 if there is none."""
        self._next[key] = start
        begin = self.builder.before(self._space, start)
        self.builder.fill(self._commas[key], self.builder.row(begin))

    def octets(self) -> Octets:
        """Returns the automaton of the container."""
        row = overlaid(self.builder.row(self._next[0, 0]), transitions(self._ends[0, 0]))
        begin = self.builder.before(self._space, self.builder.state(row))
        return self.builder.done(self.builder.state(transitions({self._open: begin})))


def write_array(
    items: Sequence[Sequence[Octets]], bounds: CountBounds, counted: CountBounds, space: Octets
) -> Octets:
    """Returns the automaton of arrays.

    A key has the number of items, and of those that count.

    Args:
        items: The texts of each of the first items, and of all further ones: of items that count,
            and of others.
        bounds: Fewest and most items.
        counted: Fewest and most items that count.
        space: The white space that may be between parts.
    """
    array = _Container("[]", space)
    builder, (least, most), (least_counted, most_counted) = array.builder, bounds, counted
    # From these numbers on, a further item makes no difference.
    last = max(len(items) - 1, least, 1) if most is None else most
    last_count = max(least_counted, most_counted or 0)
    for place, count in product(range(last + 1), range(last_count + 1)):
        has_most = most_counted is None or count <= most_counted
        is_end = place >= least and count >= least_counted and has_most
        array.begin((place, count), is_end=is_end)
    for place, count in array.after:
        counting, other = items[min(place, len(items) - 1)]
        place_after, more = min(place + 1, last), min(count + 1, last_count)
        starts = [builder.before(other, array.after[place_after, count])]
        if count != most_counted:
            starts.append(builder.before(counting, array.after[place_after, more]))
        array.go_on((place, count), -1 if place == most else builder.either(starts))
    return array.octets()


def write_object(
    members: Sequence[tuple[str, Octets, bool]],
    others: Sequence[tuple[Octets, Octets]],
    bounds: CountBounds,
    space: Octets,
) -> Octets:
    """Returns the automaton of objects.

    A key is the place that the next member has at least, and the number of members before it. The
    names that may follow are a trie: that of the next key with one more name.

    Args:
        members: Name, texts of the value, and whether it is required, in order.
        others: Names, without quotes, and values of further members.
        bounds: Fewest and most members.
        space: The white space that may be between parts.
    """
    made = _Container("{}", space)
    builder, last, (least, most) = made.builder, len(members), bounds
    # From this number on, a further member makes no difference.
    last_count = max(1, least, most or 0)
    last_required = max((n for n, member in enumerate(members) if member[2]), default=-1)
    tries: dict[Key, int] = {}

    def value(octets: Octets, key: Key) -> int:
        """Returns the state after the name of a member."""
        begin = builder.before(space, builder.before(octets, made.after[key]))
        return builder.before(space, builder.text(b":", begin))

    def trie(place: int, count: int) -> int:
        """Returns the state after the quote before the next name; -1 if there is none."""
        more = min(count + 1, last_count)
        if count == most:
            return -1
        if place == last:
            return builder.either(
                builder.before(names, builder.text(b'"', value(octets, (last, more))))
                for names, octets in others
            )
        name, octets, is_required = members[place]
        rest = -1 if is_required else tries[place + 1, count]
        after = value(octets, (place + 1, more))
        text = json.dumps(name, ensure_ascii=False).encode()
        return rest if after < 0 else builder.with_text(rest, text[1:], after)

    for key in product(range(last, -1, -1), range(last_count, -1, -1)):
        place, count = key
        if place == last or count <= place:
            has_most = most is None or count <= most
            made.begin(key, is_end=place > last_required and count >= least and has_most)
            tries[key] = trie(place, count)
            made.go_on(key, builder.text(b'"', tries[key]))
    return made.octets()

"""Writes objects as automata over bytes."""

from typing import NamedTuple

from dllm_decode.text.constraints.machines.octets import (
    Builder,
    Octets,
    json_string,
    row_of,
    tagged_union,
)

_OPEN, _COMMA, _CLOSE = map(ord, "{,}")


class ObjectPlan(NamedTuple):
    """The parts of an object.

    Attributes:
        members: Name, texts of the value, and whether it is required, in order.
        others: Names, without quotes, and values of further members.
        least: Fewest members.
        most: Most members; `None` for no bound.
    """

    members: tuple[tuple[str, Octets, bool], ...]
    others: tuple[tuple[Octets, Octets], ...]
    least: int
    most: int | None


def write_object(plan: ObjectPlan, space: Octets) -> Octets:
    """Returns the automaton of objects, with white space where it may be."""
    return _ObjectText(plan, space).octets()


class _ObjectText:
    """Writes an object from its end: the members from a place on are a trie of names.

    Each trie is the next one with one more name, so that a name is written once.
    """

    def __init__(self, plan: ObjectPlan, space: Octets) -> None:
        """Begins with the end of the object."""
        self._plan, self._space = plan, space
        self._builder = Builder()
        self._final = self._builder.end()
        self._names = tagged_union([names for names, _ in plan.others]) if plan.others else None
        required = [place for place, member in enumerate(plan.members) if member[2]]
        self._last_required = max(required, default=-1)
        # Counts from this one on make no difference.
        self._num_counts = max(1, plan.least, plan.most or 0)
        self._after: dict[tuple[int, int], int] = {}
        self._tries: dict[tuple[int, int], int] = {}

    def octets(self) -> Octets:
        builder, plan = self._builder, self._plan
        counts = range(min(len(plan.members), self._num_counts), 0, -1)
        # From the end, so that no call is nested deeply.
        for place in range(len(plan.members), -1, -1):
            for count in [1] if self._num_counts == 1 else counts:
                if plan.most is None or count <= plan.most:
                    self._after_member(place, count)
        names = self._trie(0, 0)
        row = row_of({} if names < 0 else {ord('"'): names})
        if self._last_required < 0 and plan.least == 0:
            row[_CLOSE] = self._final
        begin = builder.before(self._space, builder.state(row))
        return builder.done(builder.state(row_of({_OPEN: begin})))

    def _after_member(self, place: int, count: int) -> int:
        """Returns the state after `count` members, of which the next has at least a place."""
        key = (place, count)
        if key in self._after:
            return self._after[key]
        builder, plan = self._builder, self._plan
        is_end = place > self._last_required and count >= plan.least
        row = row_of({_CLOSE: self._final} if is_end else {})
        if place == len(plan.members) and self._names and count != plan.most:
            # After one of the other members another one may follow: the comma leads to a row that
            # is written when the row of this state is known.
            row[_COMMA] = comma = builder.reserve()
            self._after[key] = builder.before(self._space, builder.state(row))
            begin = builder.edge('"', self._trie(place, count))
            builder.fill(comma, builder.row(builder.before(self._space, begin)))
            return self._after[key]
        names = self._trie(place, count)
        if names >= 0:
            row[_COMMA] = builder.before(self._space, builder.edge('"', names))
        self._after[key] = builder.before(self._space, builder.state(row))
        return self._after[key]

    def _trie(self, place: int, count: int) -> int:
        """Returns the state after the quote of a name that has at least a place; -1 if none may be.

        `count` members are before it.
        """
        builder, plan = self._builder, self._plan
        if count == plan.most:
            return -1
        key = (place, min(count + 1, self._num_counts))
        if key in self._tries:
            return self._tries[key]
        if place == len(plan.members):
            return self._trie_of_others(key)
        name, octets, is_required = plan.members[place]
        rest = -1 if is_required else self._trie(place + 1, count)
        value = self._value(octets, (place + 1, key[1]))
        self._tries[key] = builder.with_text(rest, json_string(name)[1:], value)
        return self._tries[key]

    def _trie_of_others(self, key: tuple[int, int]) -> int:
        if self._names is None:
            self._tries[key] = -1
            return -1
        builder = self._builder
        # The members after these ones lead back here.
        self._tries[key] = builder.reserve()
        targets = [builder.edge('"', self._value(octets, key)) for _, octets in self._plan.others]
        names = builder.before_each(*self._names, tuple(targets))
        builder.fill(self._tries[key], builder.row(names))
        return self._tries[key]

    def _value(self, octets: Octets, after: tuple[int, int]) -> int:
        """Returns the state after the name of a member."""
        builder = self._builder
        value = builder.before(octets, self._after_member(*after))
        colon = builder.edge(":", builder.before(self._space, value))
        return builder.before(self._space, colon)

"""Writes sets of JSON values as automata over bytes.

Objects have their listed members in order, then others. Where a schema allows more than an
automaton can hold (values of any shape, long texts, many items, parts that lead back to
themselves), a place gets the widest form that has at most some number of states.
"""

from typing import NamedTuple

import numpy as np

from dllm_decode.text.constraints.machines.languages import Language, lengths, meet
from dllm_decode.text.constraints.machines.limits import MAX_STATES, TooLargeError
from dllm_decode.text.constraints.machines.octets import (
    NO_TEXT,
    Octets,
    in_order,
    literal,
    union,
    written,
)
from dllm_decode.text.constraints.schemas.containers import (
    ArrayPlan,
    ObjectPlan,
    unique_items,
    write_array,
    write_object,
)
from dllm_decode.text.constraints.schemas.loops import Loops
from dllm_decode.text.constraints.schemas.numbers import written_numbers
from dllm_decode.text.constraints.schemas.reader import Reader
from dllm_decode.text.constraints.schemas.references import SchemaError
from dllm_decode.text.constraints.schemas.values import (
    ANY,
    LITERALS,
    NONE,
    Arrays,
    Names,
    Node,
    Objects,
    Values,
    both,
    outside,
)

# Levels of nesting of a part that leads back to itself, at most.
_MAX_LOOPS = 8
_MAX_COUNTED = 50
# States of a character of a JSON string that may be any, and of another one.
_STATES_OF_ANY, _STATES_OF_ONE = 9, 2
_STATES_OF_MEMBER, _STATES_OF_ITEM = 10, 5
_QUOTE = literal('"')
_LITERALS = {name: literal(name) for name in LITERALS}


class Levels(NamedTuple):
    """How many levels of nesting are left.

    Attributes:
        loops: In a part that leads back to itself; `None` outside of such parts.
        open: In a value of any shape; `None` outside.
    """

    loops: int | None = None
    open: int | None = None


OUTSIDE = Levels()


class Writer:
    """Writes the nodes of one schema; a node is written once for each number of levels."""

    def __init__(
        self,
        reader: Reader,
        loops: Loops,
        *,
        space: Octets,
        depth: int,
        extra_keys: bool,
        limit: int,
    ) -> None:
        """Takes the schema and its options; `limit` is the most states of a place that can vary."""
        self._reader, self._loops, self._space = reader, loops, space
        self._extra_keys, self._limit = extra_keys, limit
        self._depth = next(
            levels for levels in range(depth, -1, -1) if levels == 0 or _open_size(levels) <= limit
        )
        self._sizes: dict[tuple[Node, Levels], int] = {}
        self._octets: dict[tuple[Node, Levels], Octets] = {}

    def size(self, node: Node, levels: Levels = OUTSIDE) -> int:
        """Returns about how many states a node has, without writing it."""
        if node == ANY:
            return _open_size(self._depth if levels.open is None else levels.open)
        inner = self._enter(node, levels)
        key = (node, inner)
        if key not in self._sizes:
            values = self._reader.values(node)
            size = 20 + len(values.numbers) + _text_size(self._kept(values.strings))
            if inner.loops is None or inner.loops >= 0:
                size += sum(self._array_size(array, inner) for array in values.arrays)
                size += sum(self._object_size(shape, inner) for shape in values.objects)
            self._sizes[key] = size
        return self._sizes[key]

    def write(self, node: Node, levels: Levels = OUTSIDE) -> Octets:
        """Returns the automaton of the JSON texts of a node.

        Raises:
            SchemaError: If the texts are no regular language that can be written.
            TooLargeError: If there are too many states.
        """
        if node == NONE:
            return NO_TEXT
        inner = self._enter(node, levels)
        key = (node, inner)
        if key not in self._octets:
            values = self._reader.values(node)
            parts = self._scalars(values)
            if -1 not in inner:
                parts += [self._array(array, inner) for array in values.arrays]
                parts += [self._object(shape, inner) for shape in values.objects]
            octets = union(parts)
            if len(octets) > MAX_STATES:
                octets = octets.smallest()
            if len(octets) > MAX_STATES:
                raise TooLargeError(f"more than {MAX_STATES} states")
            self._octets[key] = octets
        return self._octets[key]

    def _enter(self, node: Node, levels: Levels) -> Levels:
        """Returns the levels that are left for the parts of a node; -1 if it must have none."""
        if node == ANY:
            return Levels(open=(self._depth if levels.open is None else levels.open) - 1)
        if node not in self._loops.leading:
            return OUTSIDE
        if node not in self._loops.inside:
            return Levels(levels.loops)
        loops = self._most_loops(node) if levels.loops is None else levels.loops
        return Levels(loops - 1)

    def _most_loops(self, node: Node) -> int:
        most = 1
        while most < _MAX_LOOPS and self.size(node, Levels(most + 1)) <= self._limit:
            most += 1
        return most

    def _kept(self, strings: Language) -> Language:
        """Returns the strings that are written: all, or the shorter ones."""
        if _text_size(strings) <= self._limit:
            return strings
        most = max(1, self._limit * len(strings) // _text_size(strings))
        shorter = meet(strings, lengths(0, most))
        return strings if shorter.is_empty else shorter

    def _scalars(self, values: Values) -> list[Octets]:
        parts = [_LITERALS[name] for name in sorted(values.literals)]
        strings = written(self._kept(values.strings), is_quoted=True)
        if not strings.is_empty:
            parts.append(in_order(_QUOTE, strings, _QUOTE))
        numbers = written_numbers(values.numbers, is_exact=values.is_exact)
        return [*parts, written(numbers, is_quoted=False)]

    def _most_items(self, array: Arrays, inner: Levels) -> int | None:
        """Returns the most items that are written."""
        if array.most is None:
            return None
        room = self._limit // (self.size(array.rest, inner) + _STATES_OF_ITEM)
        return max(array.least, len(array.first), min(array.most, room))

    def _array_size(self, array: Arrays, inner: Levels) -> int:
        most = self._most_items(array, inner)
        num_first = len(array.first)
        num_rest = max(1, (array.least + 1 if most is None else most) - num_first)
        first = sum(self.size(node, inner) + _STATES_OF_ITEM for node in array.first)
        rest = 0 if array.rest == NONE else self.size(array.rest, inner) + _STATES_OF_ITEM
        num_counts = sum(2 * (max(least, most or 0) + 1) for _, least, most in array.counted)
        return (first + num_rest * rest) * max(1, num_counts)

    def _array(self, array: Arrays, inner: Levels) -> Octets:
        if array.is_unique and (array.most is None or array.most > 1):
            texts = self._listed(array)
            most = len(texts) if array.most is None else min(len(texts), array.most)
            return unique_items(texts, array.least, most, self._space)
        if len(array.counted) > 1:
            raise SchemaError(
                f"{array.where}/contains must be the only one of an array, got several."
            )
        rest, first = array.rest, array.first
        counted, least, most = array.counted[0] if array.counted else (ANY, 0, None)
        items = [
            (
                self.write(both([node, counted]) if array.counted else NONE, inner),
                self.write(both([node, outside(counted)]) if array.counted else node, inner),
            )
            for node in (*first, rest)
        ]
        plan = ArrayPlan(items, array.least, self._most_items(array, inner), least, most)
        return write_array(plan, self._space)

    def _listed(self, array: Arrays) -> list[bytes]:
        """Returns the JSON texts of the items of an array without equal items."""
        values = self._reader.values(array.rest)
        if array.counted or array.first or values.arrays or values.objects:
            texts = None
        else:
            texts = _few_texts(union(self._scalars(values)))
        if texts is None:
            raise SchemaError(
                f"{array.where}/uniqueItems must be left out, unless the items are texts, "
                "integers, booleans or null of a list; an automaton cannot compare others."
            )
        return texts

    def _object_size(self, shape: Objects, inner: Levels) -> int:
        size = 5
        for name, node in shape.members:
            size += len(name) + _STATES_OF_MEMBER + (0 if node == NONE else self.size(node, inner))
        size += sum(self._names_size(other, inner) for other in self._others(shape, inner))
        return size * max(1, shape.least, min(shape.most or 0, len(shape.members) + 1))

    def _names_size(self, other: Names, inner: Levels) -> int:
        names = 12 + len(other.within) + sum(map(len, other.listed))
        return names + _STATES_OF_MEMBER + self.size(other.node, inner)

    def _others(self, shape: Objects, inner: Levels) -> list[Names]:
        """Returns the names that are not listed and yet written.

        No key is invented: if the schema lists members, others are written only where the schema
        asks for them, or where `extra_keys` does and there is room.
        """
        is_needed = shape.least > len(shape.members)
        return [
            other
            for other in shape.others
            if other.node != NONE
            and (
                not other.is_unasked
                or is_needed
                or (self._extra_keys and self._names_size(other, inner) <= self._limit)
            )
        ]

    def _object(self, shape: Objects, inner: Levels) -> Octets:
        members = [
            (name, self.write(node, inner), name in shape.required)
            for name, node in shape.members
            if shape.names.has(name)
        ]
        others = [
            (written(meet(other.names, shape.names), is_quoted=True), self.write(other.node, inner))
            for other in self._others(shape, inner)
        ]
        full = tuple(member for member in members if not member[1].is_empty)
        free = tuple(pair for pair in others if not (pair[0].is_empty or pair[1].is_empty))
        if sum(is_required for _, _, is_required in full) < len(shape.required):
            return NO_TEXT
        least, most, num_required = shape.least, shape.most, len(shape.required)
        if free and least > num_required + 1:
            raise SchemaError(
                f"{shape.where}/minProperties must be at most {num_required + 1}, one more than "
                f"required names, where names are free, got {least}; an automaton cannot tell "
                "whether a name is there twice."
            )
        if most is not None:
            is_met = most >= len(full) and not free
            most = None if is_met else min(most, max(_MAX_COUNTED, least))
        least = least if least > num_required else min(least, 1)
        return write_object(ObjectPlan(full, free, least, most), self._space)


def _open_size(levels: int) -> int:
    """Returns about how many states values of any shape have, with levels of nesting."""
    return 40 + 2 * _open_size(levels - 1) if levels > 0 else 40


def _text_size(strings: Language) -> int:
    """Returns about how many states the characters of JSON strings have."""
    is_wide = (strings.table[:, -1] >= 0).sum()
    return int(_STATES_OF_ONE * len(strings) + (_STATES_OF_ANY - _STATES_OF_ONE) * is_wide)


def _few_texts(octets: Octets, most: int = 64) -> list[bytes] | None:
    """Returns the texts of a set that has few of them; `None` if there are more."""
    texts, queue = [], [(0, b"")]
    for state, text in queue:
        if len(queue) > 100 * most or len(text) > 300:
            return None
        if octets.accepting[state] and text != b"-0":
            texts.append(text)
        row = octets.table[state]
        for byte in np.flatnonzero(row >= 0).tolist():
            queue.append((int(row[byte]), text + bytes([byte])))
    return texts if len(texts) <= most else None

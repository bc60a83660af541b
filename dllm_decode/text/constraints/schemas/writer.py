"""Writes sets of JSON values as automata over bytes.

Objects have their listed members in order, then others. Where a schema allows more than an
automaton can hold (values of any shape, long texts, many items, parts that lead back to
themselves), a place gets the widest form that has at most some number of states.
"""

from dataclasses import dataclass, field

from dllm_decode.text.constraints.machines import limits
from dllm_decode.text.constraints.machines.languages import Language, lengths, words
from dllm_decode.text.constraints.machines.octets import NO_TEXT, Builder, Octets, union, written
from dllm_decode.text.constraints.schemas import containers
from dllm_decode.text.constraints.schemas.loops import Loops, find_loops
from dllm_decode.text.constraints.schemas.numbers import written_numbers
from dllm_decode.text.constraints.schemas.reader import MAX_LENGTH, Reader
from dllm_decode.text.constraints.schemas.references import Document, SchemaError
from dllm_decode.text.constraints.schemas.values import (
    ANY,
    NONE,
    Arrays,
    Names,
    Node,
    Objects,
    both,
    outside,
)

# Most states of a place that can vary, from the widest to the narrowest; see `_Writer`.
_LIMITS = (10_000, 5_000, 2_500, 1_200, 600, 300, 150, 60)
# Estimated states of an automaton that is written; most have fewer.
_MAX_ESTIMATE = 26_000
# Levels of nesting of a part that leads back to itself, at most.
_MAX_LEVELS = 8
_MAX_COUNTED = 50
# States of a character of a JSON string that may be any, and of another one.
_STATES_OF_ANY, _STATES_OF_ONE = 9, 2
_STATES_OF_MEMBER, _STATES_OF_ITEM = 10, 5


def compile_schema(document: Document, *, depth: int, space: Octets, extra_keys: bool) -> Octets:
    """Returns the automaton of the JSON texts of a schema; see `JsonSchema`.

    Sizes are estimated before anything is written, and the widest form that fits is taken.

    Raises:
        SchemaError: If no value is valid, or if the values are no regular language.
        TooLargeError: If there are too many states, or no processor time is left.
    """
    reader = Reader(document)
    root = reader.node(document.root)
    loops = find_loops(reader, root)
    for limit in _LIMITS:
        limits.require_states(0)
        writer = _Writer(reader, loops, space, depth, extra_keys, limit)
        size = writer.size(root, None)
        reason = f"about {size} states"
        if size > (_MAX_ESTIMATE if limit > _LIMITS[-1] else limits.MAX_BUILT):
            continue
        try:
            octets = writer.write(root, None).smallest()
        except limits.TooLargeError as error:
            reason = str(error)
            continue
        if octets.is_empty:
            raise SchemaError("# of a JSON schema must allow a value, got one that allows none.")
        if len(octets) <= limits.MAX_STATES:
            return octets
    raise limits.TooLargeError(reason)


@dataclass(frozen=True)
class _Writer:
    """Writes the nodes of one schema; a node is written once for each number of levels.

    Levels tell how much nesting is left. They are `None` where no part leads back to itself, and 0
    or more in such a part. In a value of any shape they are negative, and -1 allows no nesting.

    Attributes:
        reader: Reads the schema.
        loops: The nodes that lead back to themselves.
        space: As in `compile_schema`, like `depth` and `extra_keys`.
        depth: Most levels of nesting in a value of any shape.
        extra_keys: Objects may have keys that the schema does not ask for.
        limit: Most states of a place that can vary.
    """

    reader: Reader
    loops: Loops
    space: Octets
    depth: int
    extra_keys: bool
    limit: int
    _sizes: dict[tuple[Node, int | None], int] = field(default_factory=dict)
    _octets: dict[tuple[Node, int | None], Octets] = field(default_factory=dict)

    def size(self, node: Node, levels: int | None) -> int:
        """Returns about how many states a node has, without writing it."""
        inner = self._enter(node, levels)
        if (node, inner) not in self._sizes:
            values = self.reader.values(node)
            size = 20 + len(values.numbers) + _text_size(self._kept(values.strings))
            if inner != -1:
                size += sum(self._array_size(array, inner) for array in values.arrays)
                size += sum(self._object_size(shape, inner) for shape in values.objects)
            self._sizes[node, inner] = size
        return self._sizes[node, inner]

    def write(self, node: Node, levels: int | None) -> Octets:
        """Returns the automaton of the JSON texts of a node.

        Raises:
            SchemaError: If the texts are no regular language that can be written.
            TooLargeError: If there are too many states.
        """
        if node == NONE:
            return NO_TEXT
        inner = self._enter(node, levels)
        if (node, inner) not in self._octets:
            values = self.reader.values(node)
            strings = self._kept(values.strings)
            parts = [_scalars(values.literals, values.numbers, strings, values.is_exact)]
            if inner != -1:
                parts += [self._array(node, array, inner) for array in values.arrays]
                parts += [self._object(node, shape, inner) for shape in values.objects]
            octets = union(parts)
            if len(octets) > limits.MAX_STATES or len(values.arrays) + len(values.objects) > 2:
                octets = octets.smallest()
            if len(octets) > limits.MAX_STATES:
                raise limits.TooLargeError(f"more than {limits.MAX_STATES} states")
            self._octets[node, inner] = octets
        return self._octets[node, inner]

    def _enter(self, node: Node, levels: int | None) -> int | None:
        """Returns the levels that are left for the parts of a node; -1 if it must have none."""
        if node == ANY:
            if levels is None or levels >= 0:
                most = range(self.depth, 0, -1)
                fits = (n for n in most if self.size(node, -2 - n) <= self.limit)
                levels = -2 - next(fits, 0)
            return levels + 1
        if node not in self.loops.inside:
            return levels if node in self.loops.leading else None
        if levels is None:
            fits = (n for n in range(_MAX_LEVELS, 1, -1) if self.size(node, n) <= self.limit)
            levels = next(fits, 1)
        return levels - 1

    def _kept(self, strings: Language) -> Language:
        """Returns the strings that are written: all, or the shorter ones."""
        if _text_size(strings) <= self.limit:
            return strings
        most = self.limit * len(strings) // _text_size(strings)
        shorter = strings & lengths(0, min(max(1, most), MAX_LENGTH))
        return strings if shorter.is_empty else shorter

    def _most_items(self, array: Arrays, inner: int | None) -> int | None:
        """Returns the most items that are written."""
        if array.most is None:
            return None
        room = self.limit // (self.size(array.rest, inner) + _STATES_OF_ITEM)
        return min(array.most, max(array.least, len(array.first), room))

    def _array_size(self, array: Arrays, inner: int | None) -> int:
        most = self._most_items(array, inner)
        num_first = len(array.first)
        num_rest = max(1, (array.least + 1 if most is None else most) - num_first)
        first = sum(self.size(node, inner) + _STATES_OF_ITEM for node in array.first)
        rest = 0 if array.rest == NONE else self.size(array.rest, inner) + _STATES_OF_ITEM
        num_counts = sum(2 * (max(least, most or 0) + 1) for _, least, most in array.counted)
        return (first + num_rest * rest) * max(1, num_counts)

    def _array(self, node: Node, array: Arrays, inner: int | None) -> Octets:
        if len(array.counted) > 1:
            where = self.reader.where(node)
            raise SchemaError(f"{where}/contains must be the only one of an array, got several.")
        counted, least, most = array.counted[0] if array.counted else (NONE, 0, None)
        items = [
            [self.write(both([item, part]), inner) for part in (counted, outside(counted))]
            for item in (*array.first, array.rest)
        ]
        bounds = array.least, self._most_items(array, inner)
        return containers.write_array(items, bounds, (least, most), self.space)

    def _object_size(self, shape: Objects, inner: int | None) -> int:
        size = 5
        for name, node in shape.members:
            size += len(name) + _STATES_OF_MEMBER + (0 if node == NONE else self.size(node, inner))
        size += sum(self._names_size(shape, other, inner) for other in self._others(shape, inner))
        return size * max(1, shape.least, min(shape.most or 0, len(shape.members) + 1))

    def _names_size(self, shape: Objects, other: Names, inner: int | None) -> int:
        names = 12 + len(other.names) + sum(len(name) for name, _ in shape.members)
        return names + _STATES_OF_MEMBER + self.size(other.node, inner)

    def _others(self, shape: Objects, inner: int | None) -> list[Names]:
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
                or (self.extra_keys and self._names_size(shape, other, inner) <= self.limit)
            )
        ]

    def _object(self, node: Node, shape: Objects, inner: int | None) -> Octets:
        members = [
            (name, self.write(member, inner), name in shape.required)
            for name, member in shape.members
        ]
        listed = frozenset(name for name, _ in shape.members)
        others = [
            (_quoted(other.names, listed), self.write(other.node, inner))
            for other in self._others(shape, inner)
        ]
        free = [pair for pair in others if not (pair[0].is_empty or pair[1].is_empty)]
        least, most, num_required = shape.least, shape.most, len(shape.required)
        if free and least > num_required + 1:
            raise SchemaError(
                f"{self.reader.where(node)}/minProperties must be at most {num_required + 1}, one "
                f"more than required names, where names are free, got {least}; an automaton cannot "
                "tell whether a name is there twice."
            )
        if most is not None:
            is_met = most >= len(members) and not free
            most = None if is_met else min(most, max(_MAX_COUNTED, least))
        least = least if least > num_required else min(least, 1)
        return containers.write_object(members, free, (least, most), self.space)


@limits.once
def _scalars(
    literals: frozenset[str], numbers: Language, strings: Language, is_exact: bool
) -> Octets:
    builder = Builder()
    end = builder.end()
    decimals = written(written_numbers(numbers, is_exact=is_exact), is_quoted=False)
    characters = builder.before(written(strings, is_quoted=True), builder.text(b'"', end))
    starts = [builder.text(name.encode(), end) for name in sorted(literals)]
    starts += [builder.before(decimals, end), builder.text(b'"', characters)]
    return builder.done(builder.either(starts))


@limits.once
def _quoted(names: Language, listed: frozenset[str]) -> Octets:
    """Returns the names that are not listed, as characters of JSON strings."""
    return written(names - words(listed), is_quoted=True)


def _text_size(strings: Language) -> int:
    """Returns about how many states the characters of JSON strings have."""
    is_wide = (strings.table[:, -1] >= 0).sum()
    return int(_STATES_OF_ONE * len(strings) + (_STATES_OF_ANY - _STATES_OF_ONE) * is_wide)

"""Automata over the bytes of UTF-8 texts, and a builder that writes them from the end."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias

import numpy as np

from dllm_decode.text.constraints.machines import limits
from dllm_decode.text.constraints.machines.languages import NUM_CHARACTERS, Language
from dllm_decode.text.constraints.machines.tables import BoolArray, Table, distances, smallest

Transitions = Table
"""The next state for each byte; -1 if no text continues in this way."""

ByteRanges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last of some numbers, for each byte of a text."""

# Characters without an escape, and those with one, in a JSON string.
_PLAIN = ((32, 33), (35, 91), (93, 0x10FFFF))
_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\", 47: "/"}
# Bytes that follow the first one, the first byte's bits, first and last character; lone surrogates
# have no bytes.
_FORMS = (
    (0, 0, 0, 0x7F), (1, 0xC0, 0x80, 0x7FF), (2, 0xE0, 0x800, 0xD7FF), (2, 0xE0, 0xE000, 0xFFFF),
    (3, 0xF0, 0x10000, 0x10FFFF),
)  # fmt: skip

# Automata over characters with so few states are kept between constraints.
_MAX_KEPT_STATES = 8


class Octets:
    """A set of texts, as a deterministic automaton over bytes; not always the smallest one.

    Attributes:
        table: The next state for each state and byte; -1 if no text continues in this way.
        accepting: States in which the text so far is in the set.
    """

    def __init__(self, table: Table, accepting: BoolArray) -> None:
        """Counts the bytes of the table."""
        self.table, self.accepting = table, accepting
        limits.require_bytes(table.nbytes)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """True if there is no text in the set; not always known before `smallest`."""
        return not self.accepting.any()

    def smallest(self) -> "Octets":
        """Returns the automaton of the same texts with the fewest states."""
        return Octets(*smallest(self.table, self.accepting))

    def shortest_text(self) -> bytes:
        """Returns a shortest text of the set, which is not empty."""
        steps, state, text = distances(self.table, self.accepting), 0, bytearray()
        while steps[state] > 0:
            nearer = (self.table[state] >= 0) & (steps[self.table[state]] == steps[state] - 1)
            text.append(int(nearer.argmax()))
            state = int(self.table[state, text[-1]])
        return bytes(text)


NO_TEXT = Octets(np.full((1, 256), -1, np.int32), np.zeros(1, bool))
"""The automaton of no text."""


class Builder:
    """Writes an automaton from its end to its start: what follows a part is written before it.

    Equal states are written once, and a part that two states need before the same state too.
    State -1 is one from which no text is in the set.

    Attributes:
        accepting: States in which the text is in the set.
    """

    def __init__(self) -> None:
        """Begins without states."""
        self._table = np.full((64, 256), -1, np.int32)
        self._size = 0
        self.accepting: set[int] = set()
        self._states: dict[bytes, int] = {}
        self._copies: dict[tuple[int, int], tuple[Octets, int]] = {}
        self._unions: dict[tuple[int, ...], int] = {}

    def reserve(self, count: int = 1) -> int:
        """Adds states, whose rows are written later; returns the first one."""
        if self._size + count > len(self._table):
            # The table doubles, and the bounds are looked at only then.
            size = max(min(2 * len(self._table), limits.MAX_BUILT), self._size + count)
            limits.require_states(size)
            limits.require_bytes(size * 1024)
            self._table = np.vstack([self._table, np.full((size - self._size, 256), -1, np.int32)])
        self._size += count
        return self._size - count

    def end(self) -> int:
        """Adds a state in which the text is in the set, and may not go on."""
        self.accepting.add(self.reserve())
        return self._size - 1

    def state(self, row: Transitions) -> int:
        """Returns the state with a row, which is never changed."""
        key = row.tobytes()
        if key not in self._states:
            state = self._states[key] = self.reserve()
            self._table[state] = row
        return self._states[key]

    def row(self, state: int) -> Transitions:
        """Returns a copy of the row of a state."""
        return self._table[state].copy() if state >= 0 else transitions({})

    def fill(self, state: int, row: Transitions) -> None:
        """Writes the row of a state that was reserved."""
        self._table[state] = row

    def text(self, text: bytes, target: int) -> int:
        """Returns a state from which a text leads to a state."""
        for byte in reversed(text if target >= 0 else b""):
            target = self.state(transitions({byte: target}))
        return target

    def ranges(self, ranges: Sequence[tuple[int, int]], target: int) -> int:
        """Returns a state from which bytes in some ranges lead to a state."""
        for low, high in reversed(ranges):
            row = transitions({})
            row[low : high + 1] = target
            target = self.state(row)
        return target

    def before(self, part: Octets, target: int) -> int:
        """Returns the first state of a part from whose texts one goes on as from `target`."""
        if part.is_empty or target < 0:
            return -1
        key = (id(part), target)
        if key not in self._copies:
            first = self.reserve(len(part))
            rows = self._table[first : first + len(part)]
            np.add(part.table, first, out=rows, where=part.table >= 0)
            ends = np.flatnonzero(part.accepting)
            rows[ends] = overlaid(rows[ends], self._table[target])
            if target in self.accepting:
                self.accepting.update((first + ends).tolist())
            # The part is kept, so that no other one gets its id.
            self._copies[key] = (part, first)
        return self._copies[key][1]

    def with_text(self, node: int, text: bytes, target: int) -> int:
        """Returns a copy of a state of a trie with one more text, which leads to a state."""
        nodes = [node]
        for byte in text[:-1]:
            nodes.append(int(self.row(nodes[-1])[byte]))
        for byte, copied in zip(reversed(text), reversed(nodes), strict=True):
            row = self.row(copied)
            row[byte] = target
            target = self.state(row)
        return target

    def either(self, states: Iterable[int]) -> int:
        """Returns a state whose texts are those of some states.

        Where several of them go on, the new state is a set of states; a state that is alone is
        taken as it is.
        """
        start = tuple(sorted(set(states) - {-1}))
        if len(start) < 2:
            return start[0] if start else -1
        queue = [] if start in self._unions else [start]
        self._unions.setdefault(start, self._size)
        self.reserve(len(queue))
        for several in queue:
            rows = self._table[list(several)]
            row = rows.max(0)
            shared = np.flatnonzero(((rows >= 0) & (rows != row)).any(0))
            columns, places = rows[:, shared], np.arange(len(shared))
            if len(shared) > 4:
                columns, places = np.unique(columns, axis=1, return_inverse=True)
            numbers = []
            for column in columns.T.tolist():
                targets = tuple(sorted(set(column) - {-1}))
                if targets not in self._unions:
                    self._unions[targets] = self.reserve()
                    queue.append(targets)
                numbers.append(self._unions[targets])
            row[shared] = np.array(numbers, np.int32)[places.ravel()]
            self._table[self._unions[several]] = row
            if not self.accepting.isdisjoint(several):
                self.accepting.add(self._unions[several])
        return self._unions[start]

    def done(self, start: int) -> Octets:
        """Returns the automaton of the texts that lead from a state to an end."""
        if start < 0:
            return NO_TEXT
        table = self._table[: self._size]
        # States that no edge leads to are left out.
        is_used = np.zeros(self._size + 1, bool)
        is_used[table] = True
        is_used[[start, -1]] = False
        order = np.append(start, np.flatnonzero(is_used))
        number = np.full(self._size + 1, -1, np.int32)
        number[order] = np.arange(len(order))
        accepting = np.zeros(self._size, bool)
        accepting[list(self.accepting)] = True
        return Octets(number[table[order]], accepting[order])


def transitions(targets: dict[int, int]) -> Transitions:
    """Returns the row of some bytes and the states that they lead to."""
    row = np.full(256, -1, np.int32)
    for byte, target in targets.items():
        row[byte] = target
    return row


def overlaid(rows: Transitions, more: Transitions) -> Transitions:
    """Returns rows with the edges of another row too, which uses other bytes."""
    if ((rows >= 0) & (more >= 0)).any():
        raise AssertionError("A text must end where no other text goes on.")
    return np.where(more >= 0, more, rows)


def literal(text: str) -> Octets:
    """Returns the automaton of one text."""
    builder = Builder()
    return builder.done(builder.text(text.encode(), builder.end()))


def in_order(*parts: Octets) -> Octets:
    """Returns the texts of all parts in order; a text must end before the next one begins."""
    builder = Builder()
    target = builder.end()
    for part in reversed(parts):
        target = builder.before(part, target)
    return builder.done(target)


def written(language: Language, *, is_quoted: bool) -> Octets:
    """Returns the bytes of texts; if quoted, the characters of a JSON string between its quotes."""
    write = _write_small if len(language) <= _MAX_KEPT_STATES else _write
    return write(language, is_quoted)


@limits.once
def _write(language: Language, is_quoted: bool) -> Octets:
    builder = Builder()
    builder.reserve(len(language))
    builder.accepting.update(np.flatnonzero(language.accepting).tolist())
    cuts = [*language.cuts.tolist(), NUM_CHARACTERS]
    for state, targets in enumerate(language.table.tolist()):
        after: dict[tuple[int, int], list[int]] = {}
        # Neighbours with one target are written together.
        for target, group in groupby(range(len(targets)), targets.__getitem__):
            columns = list(group)
            low, high = cuts[columns[0]], cuts[columns[-1] + 1] - 1
            for byte, *more in _bytes_of(low, high, is_quoted) if target >= 0 else ():
                after.setdefault(byte, []).append(builder.ranges(more, target))
        row = transitions({})
        for (low, high), states in after.items():
            row[low : high + 1] = builder.either(states)
        builder.fill(state, row)
    return builder.done(0)


_write_small = lru_cache(maxsize=256)(_write)


@lru_cache(maxsize=4096)
def _bytes_of(low: int, high: int, is_quoted: bool) -> Sequence[ByteRanges]:
    """Returns the bytes of all characters of a range."""
    found: list[ByteRanges] = []
    for plain in _PLAIN if is_quoted else ((0, 0x10FFFF),):
        for num_more, lead, *form in _FORMS:
            begin, end = max(low, plain[0], form[0]), min(high, plain[1], form[1])
            for first, *rest in _digits(begin, end, num_more) if begin <= end else ():
                more = ((0x80 + least, 0x80 + most) for least, most in rest)
                found.append(((lead + first[0], lead + first[1]), *more))
    for code, letter in _ESCAPES.items() if is_quoted else ():
        if low <= code <= high:
            found.append(((92, 92), (ord(letter), ord(letter))))
    return tuple(found)


def _digits(low: int, high: int, num_more: int) -> Iterator[ByteRanges]:
    """Yields the digits of some numbers to the base 64, of which `num_more` follow the first."""
    size = 64**num_more
    begin, end = -(-low // size), (high + 1) // size
    if begin > end:
        # All numbers have one first digit.
        begin, parts = end, [(end, low % size, high % size)]
    else:
        parts = [(begin - 1, low % size, size - 1)] if low % size else []
        parts += [(end, 0, high % size)] if (high + 1) % size else []
    for first, least, most in parts:
        yield from (((first, first), *rest) for rest in _digits(least, most, num_more - 1))
    if begin < end:
        yield ((begin, end - 1), *((0, 63),) * num_more)


def union(parts: Iterable[Octets]) -> Octets:
    """Returns the texts that are in one of the sets."""
    parts = [part for part in parts if not part.is_empty]
    if len(parts) == 1:
        return parts[0]
    builder = Builder()
    end = builder.end()
    return builder.done(builder.either([builder.before(part, end) for part in parts]))

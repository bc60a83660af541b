"""Sets of texts as automata over characters, and the operations of a boolean algebra on them."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dllm_decode.text.constraints.machines import limits
from dllm_decode.text.constraints.machines.tables import BoolArray, smallest

NUM_CHARACTERS = 0x110000

# Most pairs of states of two automata that are read together.
_MAX_PAIRS = 30_000_000

_MAX_LENGTH = 3_000


class Language:
    """A set of texts, as the deterministic automaton with the fewest states.

    Attributes:
        cuts: First character of each range of characters that lead to the same states.
        table: The next state for each state and range; -1 if no text continues in this way.
        accepting: States in which the text so far is in the set.
    """

    def __init__(
        self, cuts: NDArray[np.integer], table: NDArray[np.integer], accepting: BoolArray
    ) -> None:
        """Merges equal states and equal ranges."""
        small, accepting = smallest(table.astype(np.int32), accepting)
        is_kept = np.append(True, (small[:, 1:] != small[:, :-1]).any(0))
        self.cuts = cuts[is_kept].astype(np.int64)
        self.table = np.ascontiguousarray(small[:, is_kept])
        self.accepting = accepting
        limits.require_bytes(self.table.nbytes)
        parts = (self.cuts, self.table, self.accepting)
        self._digest = blake2b(b"/".join(part.tobytes() for part in parts), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Language) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """True if there is no text in the set."""
        return not self.accepting.any()

    def has(self, text: str) -> bool:
        """Returns whether a text is in the set."""
        state = 0
        for character in text:
            column = np.searchsorted(self.cuts, ord(character), "right") - 1
            state = int(self.table[state, column])
            if state < 0:
                return False
        return bool(self.accepting[state])

    def __and__(self, other: "Language") -> "Language":
        """Returns the texts that are in both sets."""
        if other == EVERY or self == other:
            return self
        if self == EVERY:
            return other
        return NOTHING if self.is_empty or other.is_empty else _product(self, other, "and")

    def __or__(self, other: "Language") -> "Language":
        """Returns the texts that are in one of the sets."""
        if self.is_empty or self == other:
            return other
        if other.is_empty:
            return self
        return EVERY if EVERY in (self, other) else _product(self, other, "or")

    def __sub__(self, other: "Language") -> "Language":
        """Returns the texts of the first set that are not in the second one."""
        return self if other.is_empty or self.is_empty else _product(self, other, "not")


def _one_state(target: int) -> Language:
    return Language(np.array([0]), np.array([[target]]), np.array([target == 0]))


EVERY = _one_state(0)
"""All texts."""

NOTHING = _one_state(-1)
"""No text."""


@limits.once
def _product(first: Language, second: Language, operator: Literal["and", "or", "not"]) -> Language:
    """Reads both automata side by side; a state is a pair of states, the last of which is dead."""
    cuts = np.union1d(first.cuts, second.cuts)
    base = len(second) + 1
    if len(first) * len(second) > _MAX_PAIRS:
        raise limits.TooLargeError(f"more than {_MAX_PAIRS} pairs of states")
    left, right = _with_dead(first, cuts), _with_dead(second, cuts)
    number = np.full((len(first) + 1) * base, -1, np.int64)
    number[0] = 0
    fronts, rows, count = [np.array([0])], [], 1
    while fronts[-1].size:
        next_left, next_right = left[fronts[-1] // base], right[fronts[-1] % base]
        is_dead, other_is_dead = next_left == len(first), next_right == len(second)
        if operator == "and":
            is_dead |= other_is_dead
        elif operator == "or":
            is_dead &= other_is_dead
        rows.append(np.where(is_dead, -1, next_left * base + next_right))
        found = np.unique(rows[-1])
        found = found[found >= 0]
        found = found[number[found] < 0]
        number[found] = np.arange(count, count + len(found))
        count += len(found)
        limits.require_states(count)
        fronts.append(found)
    pairs, table = np.concatenate(fronts), np.vstack(rows)
    ends_first = np.append(first.accepting, False)[pairs // base]
    ends_second = np.append(second.accepting, False)[pairs % base]
    if operator == "not":
        ends_second = ~ends_second
    accepting = ends_first | ends_second if operator == "or" else ends_first & ends_second
    return Language(cuts, np.where(table < 0, -1, number[table]), accepting)


def _with_dead(language: Language, cuts: NDArray[np.integer]) -> NDArray[np.integer]:
    """Returns the table for finer ranges, in which the last state is dead."""
    dead = len(language)
    table = np.where(language.table < 0, dead, language.table)
    table = np.vstack([table, np.full((1, table.shape[1]), dead)])
    return table[:, np.searchsorted(language.cuts, cuts, "right") - 1].astype(np.int64)


@lru_cache(maxsize=256)
def lengths(least: int, most: int | None) -> Language:
    """Returns the texts of so many characters; `None` for no upper bound."""
    num_states = (least if most is None else most) + 1
    if num_states > _MAX_LENGTH:
        raise limits.TooLargeError(f"a length of more than {_MAX_LENGTH - 1} characters")
    table = np.arange(1, num_states + 1)[:, None]
    table[-1] = least if most is None else -1
    return Language(np.array([0]), table, np.arange(num_states) >= least)


def words(texts: Iterable[str]) -> Language:
    """Returns a set of listed texts."""
    rows: list[dict[int, int]] = [{}]
    ends = set()
    for text in texts:
        state = 0
        for code in map(ord, text):
            if code not in rows[state]:
                rows[state][code] = len(rows)
                rows.append({})
            state = rows[state][code]
        ends.add(state)
    codes = {code for row in rows for code in row}
    cuts = np.array(sorted({0} | codes | {code + 1 for code in codes if code + 1 < NUM_CHARACTERS}))
    limits.require_bytes(4 * len(rows) * len(cuts))
    column = {int(code): number for number, code in enumerate(cuts)}
    table = np.full((len(rows), len(cuts)), -1, np.int32)
    for state, row in enumerate(rows):
        for code, target in row.items():
            table[state, column[code]] = target
    return Language(cuts, table, np.isin(np.arange(len(rows)), list(ends)))

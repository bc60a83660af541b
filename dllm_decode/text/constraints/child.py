"""Builds the automaton of a regular expression over bytes, as a program that can be ended.

The library that builds automata takes no bounds, and a short expression can need more memory than
there is. Input: the expression. Output, in numbers of 64 bits: the first state, the number of
states, the kind of each byte, the next states by state and kind, and which states accept. The last
state is the one from which no text is accepted.
"""

import sys
from array import array
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary

REFUSED = 3
"""Exit status if there is no automaton; the error output says why."""

# A character that no text has. It follows each expression, because the automaton prefers the
# alternative on the left: 1-(1|11) would not read all of 1-11.
_END = "\U0010ffff"

# An odd number without a pattern (Steele, Lea and Flood 2014).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

_Numbers = NDArray[np.int64]


def main(memory_bytes: int, begin: str) -> int:
    """Builds the automaton; returns the exit status.

    `begin` is empty, or a character that no text has. The library also builds the automaton of a
    search, which is large; a first character that no text has keeps the search from beginning
    within a text.
    """
    # Not on Windows, where the time limit alone ends the program.
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    pattern = f"{begin}(?:{sys.stdin.buffer.read().decode()}){_END}"
    try:
        index = Index(pattern, Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    except ValueError as error:
        print(error, file=sys.stderr)
        return REFUSED
    sys.stdout.buffer.write(_smallest(index, begin).tobytes())
    return 0


def _smallest(index: Index, begin: str) -> _Numbers:
    """Returns the automaton with the fewest states, as the program writes it."""
    edges = array("q")
    for state, targets in index.get_transitions().items():
        for byte, target in targets.items():
            if byte < 256:
                edges.extend((state, byte, target))
    sources, labels, targets = np.frombuffer(edges, np.int64).reshape(-1, 3).T
    final = np.array(sorted(index.get_final_states()), dtype=np.int64)
    names = np.unique(np.concatenate([[index.get_initial_state()], final, sources, targets]))
    dead = len(names)
    table = np.full((dead + 1, 256), dead, dtype=np.int32)
    table[np.searchsorted(names, sources), labels] = np.searchsorted(names, targets)
    ended = np.arange(dead + 1)
    for byte in _END.encode():
        ended = table[ended, byte]
    accepting = np.isin(ended, np.searchsorted(names, final))
    start = int(np.searchsorted(names, index.get_initial_state()))
    for byte in begin.encode():
        start = int(table[start, byte])
    columns, kinds = np.unique(table, axis=1, return_inverse=True)
    groups = _equal_states(columns, accepting)
    _, first, groups = np.unique(groups, return_index=True, return_inverse=True)
    # The dead state becomes the last one.
    order = np.argsort(np.arange(len(first)) == groups[dead], kind="stable")
    number = np.argsort(order)[groups]
    rows = first[order]
    parts = ([number[start], len(rows)], kinds.ravel(), number[columns[rows]].ravel())
    return np.concatenate([*parts, accepting[rows]]).astype(np.int64)


def _equal_states(table: NDArray[np.int32], accepting: NDArray[np.bool_]) -> _Numbers:
    """Returns a number for each state, equal for states from which the same texts are accepted.

    Moore's refinement: states count as equal until their next states differ. Rows of next states
    are compared by sums with random factors, and at the end in full.
    """
    random = np.random.default_rng(0)
    groups, count = accepting.astype(np.int64), 0
    while True:
        factors = random.integers(1, 2**63, table.shape[1], dtype=np.uint64)
        keys = groups[table].astype(np.uint64) @ factors + groups.astype(np.uint64) * _FACTOR
        _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) == count:
            rows = groups[table]
            if (rows == rows[first][groups]).all():
                return groups
        count = len(first)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2].replace("0", "\0")))

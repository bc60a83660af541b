"""Builds the automaton of a regular expression over bytes, as a program that can be ended.

The library that builds automata takes no bounds, and a short expression can need more memory than
there is. Input: the expression. Output, in unsigned 64-bit numbers: the first state, the number of
final states, those, and each edge as state, byte, state.
"""

import sys
from array import array
from contextlib import suppress

from outlines_core import Index, Vocabulary

REFUSED = 3
"""Exit status if there is no automaton; the error output says why."""


def main(memory_bytes: int) -> int:
    """Builds the automaton; returns the exit status."""
    # Not on Windows, where the time limit alone ends the program.
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    pattern = sys.stdin.buffer.read().decode()
    try:
        index = Index(pattern, Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    except ValueError as error:
        print(error, file=sys.stderr)
        return REFUSED
    final = index.get_final_states()
    found = array("Q", [index.get_initial_state(), len(final), *final])
    for state, edges in index.get_transitions().items():
        for byte, target in edges.items():
            if byte < 256:
                found.extend((state, byte, target))
    sys.stdout.buffer.write(found.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

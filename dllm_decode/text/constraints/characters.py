"""The automaton of a regular expression over bytes, with as few states as there can be."""

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplers.checks import shown

# A character that no text has. It follows each expression, because the automaton prefers the
# alternative on the left: 1-(1|11) would not read all of 1-11.
_END = "\U0010ffff"

# An expression of 200,000 states needs a quarter of it.
_MEMORY_BYTES = 1 << 31

# An odd number without a pattern (Steele, Lea and Flood 2014).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

# Exit status of the program if there is no automaton.
_REFUSED = 3

Numbers = NDArray[np.int64]


class ByteAutomaton(NamedTuple):
    """A deterministic automaton over the bytes of UTF-8 texts, with the fewest states.

    Bytes that lead from every state to the same states are one kind.

    Attributes:
        kinds: The kind of each byte.
        table: The next state of each state and kind; `dead` if no text goes on so.
        accepting: States in which the text so far is in the set.
        start: The first state.
        dead: The state from which no text is accepted, the last one.
    """

    kinds: Numbers
    table: Numbers
    accepting: NDArray[np.bool_]
    start: int
    dead: int

    def shortest_text(self) -> bytes | None:
        """Returns a shortest text of the set; `None` if there is none."""
        texts = {self.start: b""}
        line = [self.start]
        byte_of = {int(kind): bytes([byte]) for byte, kind in enumerate(self.kinds)}
        for state in line:
            if self.accepting[state]:
                return texts[state]
            for kind, target in enumerate(self.table[state].tolist()):
                if target != self.dead and target not in texts:
                    texts[target] = texts[state] + byte_of[kind]
                    line.append(target)
        return None


def read_expression(pattern: str, *, owner: str, limit_s: float, has_null: bool) -> ByteAutomaton:
    """Returns the automaton of the texts that an expression matches from end to end.

    Args:
        pattern: A regular expression in the syntax of Rust's `regex`.
        owner: Names the expression in messages.
        limit_s: Seconds after which building it ends.
        has_null: True if the expression may match a null character.

    Raises:
        ImportError: If the extra `structured` is not installed.
        ValueError: If it is no such expression, is too large, or matches no text.
    """
    end_s = time.monotonic() + limit_s
    # The library also builds the automaton of a search, which is large. A first character that no
    # text has keeps the search from beginning within a text.
    begin = "" if has_null else "\0"
    numbers = np.frombuffer(_built(pattern, begin, owner, limit_s), np.uint64)
    num_final = int(numbers[1])
    final, edges = numbers[2 : 2 + num_final], numbers[2 + num_final :].reshape(-1, 3)
    names = np.unique(np.concatenate([numbers[:1], final, edges[:, 0], edges[:, 2]]))
    # The last state is one from which no text is accepted.
    table = np.full((len(names) + 1, 256), len(names))
    table[np.searchsorted(names, edges[:, 0]), edges[:, 1].astype(np.int64)] = np.searchsorted(
        names, edges[:, 2]
    )
    ended = np.arange(len(table))
    for byte in _END.encode():
        ended = table[ended, byte]
    is_final = np.isin(np.arange(len(table)), np.searchsorted(names, final))
    start = int(np.searchsorted(names, numbers[0]))
    for byte in begin.encode():
        start = int(table[start, byte])
    columns, kinds = np.unique(table, axis=1, return_inverse=True)
    groups = _equal_states(columns, is_final[ended], end_s)
    if groups is None:
        raise ValueError(_too_large(pattern, owner, limit_s))
    _, first, groups = np.unique(groups, return_index=True, return_inverse=True)
    dead = int(groups[-1])
    order = np.argsort(np.arange(len(first)) == dead, kind="stable")
    number = np.argsort(order)
    first = first[order]
    return ByteAutomaton(
        kinds=kinds.ravel(),
        table=number[groups[columns[first]]],
        accepting=is_final[ended[first]],
        start=int(number[groups[start]]),
        dead=len(first) - 1,
    )


def _equal_states(table: Numbers, accepting: NDArray[np.bool_], end_s: float) -> Numbers | None:
    """Returns a number for each state, the same for those from which the same texts are accepted.

    Moore's refinement: states are equal until their next states are not. Rows of next states are
    told apart by sums with random factors, and in the end compared in full.

    Returns:
        The numbers; `None` if they are not found in time.
    """
    random = np.random.default_rng(0)
    groups, count = accepting.astype(np.int64), 0
    while time.monotonic() < end_s:
        factors = random.integers(1, 2**63, table.shape[1], dtype=np.uint64)
        keys = groups[table].astype(np.uint64) @ factors + groups.astype(np.uint64) * _FACTOR
        _, first, groups = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) == count:
            rows = groups[table]
            if (rows == rows[first][groups]).all():
                return groups
        count = len(first)
    return None


def _built(pattern: str, begin: str, owner: str, limit_s: float) -> bytes:
    """Returns the output of the program that builds an automaton."""
    if find_spec("outlines_core") is None:
        raise ImportError(
            "A constraint needs outlines_core. Install it with: "
            'pip install "dllm-decode[structured]"'
        )
    command = [sys.executable, str(Path(__file__).with_name("child.py")), str(_MEMORY_BYTES)]
    whole = f"{begin}(?:{pattern}){_END}".encode()
    try:
        run = subprocess.run(command, input=whole, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ValueError(_too_large(pattern, owner, limit_s)) from None
    if run.returncode == _REFUSED:
        reason = run.stderr.decode().strip()
        if "no transitions" in reason:
            raise ValueError(f"{owner} must match a text, got one that matches none.")
        raise ValueError(
            f"{owner} must be a regular expression in the syntax of Rust's regex, which has no "
            f"look-around and no back references, got {shown(pattern)} ({reason})."
        )
    if run.returncode:
        raise ValueError(_too_large(pattern, owner, limit_s))
    return run.stdout


def _too_large(pattern: str, owner: str, limit_s: float) -> str:
    return (
        f"{owner} must be small enough to be compiled within {limit_s:g} seconds and "
        f"{_MEMORY_BYTES >> 20} MiB, got {shown(pattern)}. Write shorter repetitions."
    )

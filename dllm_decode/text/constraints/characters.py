"""The automaton of a regular expression over bytes, with as few states as there can be."""

import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplers.checks import shown

_MEMORY_BYTES = 1 << 31

# Seconds between two checks that the automaton is still wanted.
_LOOK_S = 0.1

# Exit status of the program if there is no automaton.
_REFUSED = 3

Numbers = NDArray[np.int64]


class ByteAutomaton(NamedTuple):
    """A deterministic automaton over the bytes of UTF-8 texts, with the fewest states.

    Bytes that lead from every state to the same states are one kind.

    Attributes:
        kinds: The kind of each byte.
        table: The next state for each state and kind; `dead` if no text continues in this way.
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


def read_expression(
    pattern: str,
    *,
    owner: str,
    limit_s: float,
    has_null: bool,
    is_wanted: Callable[[], bool] = lambda: True,
) -> ByteAutomaton:
    """Returns the automaton of the texts that an expression matches from end to end.

    Args:
        pattern: A regular expression in the syntax of Rust's `regex`.
        owner: Names the expression in messages.
        limit_s: Most seconds that building the automaton may take.
        has_null: True if the expression may match a null character.
        is_wanted: Building the automaton ends soon after this returns False.

    Raises:
        ImportError: If the extra `structured` is not installed.
        ValueError: If the pattern is invalid, too large, matches no text, or is no longer wanted.
    """
    if find_spec("outlines_core") is None:
        raise ImportError(
            "A constraint needs outlines_core. Install it with: "
            'pip install "dllm-decode[structured]"'
        )
    try:
        written = pattern.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{owner} must be text in UTF-8, got {shown(pattern)}.") from None
    program = str(Path(__file__).with_name("child.py"))
    command = [sys.executable, program, str(_MEMORY_BYTES), "" if has_null else "0"]
    until_s = time.monotonic() + limit_s
    output = _output_of(command, written, lambda: is_wanted() and time.monotonic() < until_s)
    if output.status == _REFUSED:
        if "no transitions" in output.error:
            raise ValueError(f"{owner} must match a text, got one that matches none.")
        raise ValueError(
            f"{owner} must be a regular expression in the syntax of Rust's regex, which has no "
            f"look-around and no back references, got {shown(pattern)} ({output.error})."
        )
    if output.status:
        raise ValueError(
            f"{owner} must be small enough to be compiled within {limit_s:g} seconds and "
            f"{_MEMORY_BYTES >> 20} MiB, got {shown(pattern)}. Write shorter repetitions."
        )
    numbers = np.frombuffer(output.content, np.int64)
    (start, num_states), kinds, rest = numbers[:2], numbers[2:258], numbers[258:]
    return ByteAutomaton(
        kinds=kinds,
        table=rest[:-num_states].reshape(num_states, -1),
        accepting=rest[-num_states:] > 0,
        start=int(start),
        dead=int(num_states) - 1,
    )


class _Output(NamedTuple):
    """The exit status of a program, the bytes that it wrote, and its error as a text."""

    status: int
    content: bytes
    error: str


def _output_of(command: list[str], input_bytes: bytes, goes_on: Callable[[], bool]) -> _Output:
    """Runs a program; kills the program soon after `goes_on` returns False."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        unsent: bytes | None = input_bytes
        while True:
            try:
                content, error = process.communicate(unsent, timeout=_LOOK_S)
                return _Output(process.returncode, content, error.decode().strip())
            except subprocess.TimeoutExpired:
                # The program has all bytes already, or the next call sends the rest.
                unsent = None
            if not goes_on():
                process.kill()

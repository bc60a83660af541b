"""Compiles a constraint for a tokenizer: the automaton of its texts, token by token."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dllm_decode.core.automaton import DEAD_CLASS, EOS_CLASS, Automaton
from dllm_decode.text.constraints.constraints import Constraint
from dllm_decode.text.constraints.machines import limits
from dllm_decode.text.constraints.machines.octets import Octets
from dllm_decode.text.constraints.machines.tables import (
    BoolArray,
    IntArray,
    distances,
    kinds_of,
    reached,
)
from dllm_decode.text.constraints.vocabulary import Vocabulary

LIMIT_S = 10.0
"""Processor seconds that compiling a constraint may take."""

# Most edges of an automaton over tokens; a step reads all of them for each column.
_MAX_EDGES = 4_000_000

# Most entries of a table of states by classes: 400 MB.
_MAX_ENTRIES = 100_000_000


@lru_cache(maxsize=64)
def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Automaton:
    """Returns the automaton of a constraint's texts as `build_automaton`; caches the last 64."""
    return build_automaton(constraint, vocabulary)


def build_automaton(
    constraint: Constraint, vocabulary: Vocabulary, *, limit_s: float = LIMIT_S
) -> Automaton:
    """Returns the automaton of a constraint's texts.

    Args:
        constraint: The texts.
        vocabulary: The texts of the model's tokens.
        limit_s: Most processor seconds of this thread that compiling may take.

    Raises:
        ValueError: If the constraint is not regular, too large, or not writable by the tokenizer.
    """
    try:
        with limits.processor_limit(limit_s):
            return _built(constraint, vocabulary)
    except limits.TooLargeError as error:
        raise ValueError(
            f"{constraint.label} must have at most {limits.MAX_STATES} states, and take at most "
            f"{limit_s:g} processor seconds, got {error}. Write shorter repetitions, or fewer "
            "alternatives."
        ) from None
    except RecursionError:
        raise ValueError(f"{constraint.label} must not be nested so deeply.") from None


def _built(constraint: Constraint, vocabulary: Vocabulary) -> Automaton:
    octets = constraint.octets()
    if octets.is_empty:
        raise ValueError(f"{constraint.label} must match a text, got one that matches none.")
    limits.require_states(len(octets), limits.MAX_STATES)
    if constraint.texts is not None:
        _require_written(constraint, constraint.texts, vocabulary)
    later = _fold(octets, vocabulary.later, np.arange(len(octets) + 1))
    first = _fold(octets, vocabulary.first, np.array([0]))
    automaton = _automaton(octets.accepting, later, first, vocabulary.eos_ids)
    if automaton.distances[0] < 0:
        _require_written(constraint, [octets.shortest_text().decode()], vocabulary)
    return automaton


class _Folded(NamedTuple):
    """The state that each token leads to, from each of some start states.

    Attributes:
        functions: The function of each token; function 0 always leads to the dead state.
        table: The state to which each function (row) leads from each start state (column).
    """

    functions: IntArray
    table: NDArray[np.integer]


def _fold(octets: Octets, texts: tuple[bytes | None, ...], states: IntArray) -> _Folded:
    """Reads the texts of all tokens at once, from each of the start states.

    One more state, the last one, is dead: no text continues there.

    All texts are read byte by byte. Tokens that so far lead from every state to the same states
    share a function, and each pair of a function and a kind of byte is looked up once.
    """
    dead = len(octets)
    first, kinds = kinds_of(octets.table)
    steps = np.vstack([octets.table[:, first], np.full(len(first), -1, np.int32)]).T
    steps = np.where(steps < 0, np.int32(dead), steps)
    rows = [np.full(len(states), dead, np.int32), states.astype(np.int32)]
    numbers = {row.tobytes(): number for number, row in enumerate(rows)}
    functions = np.array([text is not None for text in texts], dtype=np.int64)
    # If all start states are dead, both rows are equal.
    functions *= numbers[rows[1].tobytes()]
    lengths = np.array([len(text or b"") for text in texts])
    starts = np.cumsum(lengths) - lengths
    kinds = kinds[np.frombuffer(b"".join(text or b"" for text in texts), np.uint8)]
    for place in range(int(lengths.max(initial=0))):
        token_ids = np.flatnonzero((lengths > place) & (functions > 0))
        pairs = functions[token_ids] * len(steps) + kinds[starts[token_ids] + place]
        pairs, inverse = np.unique(pairs, return_inverse=True)
        next_functions = []
        for pair in pairs.tolist():
            function, kind = divmod(pair, len(steps))
            row = steps[kind][rows[function]]
            number = numbers.setdefault(row.tobytes(), len(rows))
            if number == len(rows):
                rows.append(row)
            next_functions.append(number)
        if len(rows) * len(states) > _MAX_ENTRIES:
            raise limits.TooLargeError(f"{len(states)} states and {len(rows)} classes of tokens")
        limits.require_states(0)
        functions[token_ids] = np.array(next_functions, dtype=np.int64)[inverse]
    return _Folded(functions, np.stack(rows))


def _automaton(
    accepting: BoolArray, later: _Folded, first: _Folded, eos_ids: tuple[int, ...]
) -> Automaton:
    """Joins the first state and the states of later tokens, and adds the state after an EOS."""
    start = len(accepting)
    # Tokens of one class lead to the same states, at the beginning and after other tokens.
    pairs, classes = np.unique(
        later.functions * len(first.table) + first.functions, return_inverse=True
    )
    after, at_start = np.divmod(pairs, len(first.table))
    table = np.vstack([later.table[after][:, :start].T, first.table[at_start, 0]])
    table = np.where(table == start, -1, table)
    accepting = np.append(accepting, accepting[0])
    steps = distances(table, accepting)
    useful = np.sort(reached(table, start))
    useful = useful[steps[useful] >= 0]
    order = np.concatenate([[start], useful[useful != start]])
    number = np.full(start + 2, -1)
    number[order] = np.arange(len(order))
    table = np.where(table[order] < 0, -1, number[table[order]])
    # The first column is that of tokens that fit nowhere.
    table = np.insert(table, DEAD_CLASS, -1, axis=1)
    columns, merged = np.unique(table, axis=1, return_inverse=True)
    return _with_edges(columns, merged.ravel()[1:][classes], steps[order], eos_ids)


def _with_edges(
    columns: IntArray, classes: IntArray, steps: IntArray, eos_ids: tuple[int, ...]
) -> Automaton:
    """Returns an automaton with one more state, after an EOS.

    `columns` has the next state for each state and class, -1 for none; `classes` is per token.
    """
    end = len(columns)
    classes = np.where(classes < EOS_CLASS, classes, classes + 1)
    classes[list(eos_ids)] = EOS_CLASS
    full = np.insert(columns, EOS_CLASS, np.where(steps == 0, end, -1), axis=1)
    full = np.vstack([full, np.full(full.shape[1], -1)])
    full[end, EOS_CLASS] = end
    sources, labels = np.nonzero(full >= 0)
    if len(sources) > _MAX_EDGES:
        raise limits.TooLargeError(f"more than {_MAX_EDGES} edges between states")
    examples = np.zeros(full.shape[1], dtype=np.int64)
    used_classes, first_tokens = np.unique(classes, return_index=True)
    examples[used_classes] = first_tokens
    parts = (classes, sources, labels, full[sources, labels], np.append(steps, 0), examples)
    return Automaton(*(torch.from_numpy(part.astype(np.int64)) for part in parts))


def _require_written(constraint: Constraint, texts: Sequence[str], vocabulary: Vocabulary) -> None:
    """Raises ValueError if the tokenizer cannot write one of the texts."""
    first = {text for text in vocabulary.first if text is not None}
    later = {text for text in vocabulary.later if text is not None}
    for text in texts:
        written = _written(text.encode(), first, later).decode(errors="ignore")
        if written != text:
            raise ValueError(
                f"{constraint.label} must have texts that the tokenizer can write, got {text!r}, "
                f"whose character {len(written)}, {text[len(written)]!r}, it cannot write there."
            )


def _written(text: bytes, first: set[bytes], later: set[bytes]) -> bytes:
    """Returns the longest beginning of a text that tokens can write."""
    longest = max(map(len, first | later), default=0)
    # An answer without tokens is the empty text.
    reached = {0}
    queue = [size for size in range(longest + 1) if text[:size] in first]
    for start in queue:
        reached.add(start)
        for stop in range(start + 1, min(start + longest, len(text)) + 1):
            if stop not in reached and text[start:stop] in later:
                reached.add(stop)
                queue.append(stop)
    return text[: max(reached)]

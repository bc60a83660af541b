"""Compiles a constraint for a tokenizer: the automaton of its texts, token by token."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dllm_decode.core.language import DEAD_CLASS, EOS_CLASS, Automaton
from dllm_decode.text.constraints.characters import ByteAutomaton, Numbers, read_expression
from dllm_decode.text.constraints.constraints import Constraint
from dllm_decode.text.constraints.vocabulary import Vocabulary

MAX_STATES = 5_000
LIMIT_S = 10.0

# Most entries of a table of states by classes: 400 MB.
_MAX_ENTRIES = 100_000_000

_FAR = 2**31 - 1


@lru_cache(maxsize=64)
def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Automaton:
    """Returns the automaton of a constraint's texts as `build_automaton`; caches the last 64."""
    return build_automaton(constraint, vocabulary)


def build_automaton(
    constraint: Constraint,
    vocabulary: Vocabulary,
    *,
    max_states: int = MAX_STATES,
    limit_s: float = LIMIT_S,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Automaton:
    """Returns the automaton of a constraint's texts.

    Args:
        constraint: The texts.
        vocabulary: The texts of the model's tokens.
        max_states: Most states of the automaton over bytes.
        limit_s: Most seconds that compiling the expression may take.
        is_wanted: Compiling the expression ends soon after this returns False.

    Raises:
        ImportError: If the extra `structured` is not installed.
        ValueError: If the constraint is not regular, too large, or not writable by the tokenizer.
    """
    owner = constraint.label
    dfa = read_expression(
        constraint.pattern(), owner=owner, limit_s=limit_s, has_null=constraint.has_null,
        is_wanted=is_wanted,
    )  # fmt: skip
    if dfa.dead > max_states:
        raise ValueError(
            f"{owner} must have at most {max_states} states, got {dfa.dead}. Write shorter "
            "repetitions, or fewer alternatives."
        )
    if constraint.texts is not None:
        _require_written(constraint, constraint.texts, vocabulary)
    later = _fold(dfa, vocabulary.later, np.arange(dfa.dead + 1), owner)
    first = _fold(dfa, vocabulary.first, np.array([dfa.start]), owner)
    automaton = _automaton(dfa, later, first, vocabulary.eos_ids)
    if automaton.distances[0] == _FAR:
        _require_written(constraint, [(dfa.shortest_text() or b"").decode()], vocabulary)
    return automaton


def require_length(
    constraint: Constraint,
    automaton: Automaton,
    gen_length: int,
    *,
    template: Sequence[int] = (),
    mask_id: int | None = None,
) -> None:
    """Raises ValueError unless an answer of `gen_length` tokens can be a text of the constraint.

    `template` has the first tokens of the answer, `mask_id` where a token is open.
    """
    least = automaton.least_length(template, mask_id)
    if least is None:
        raise ValueError(
            f"{constraint.label} must have a text that agrees with the given tokens, got none that "
            f"does: {constraint!r}."
        )
    if least > gen_length:
        raise ValueError(
            f"gen_length must be at least {least}, the tokens of the shortest answer that "
            f"{constraint.label} allows, got {gen_length}."
        )


class _Folded(NamedTuple):
    """The state that each token leads to, from each of some start states.

    Attributes:
        functions: The function of each token; function 0 always leads to the dead state.
        table: The state to which each function (row) leads from each start state (column).
    """

    functions: Numbers
    table: NDArray[np.int32]


def _fold(
    dfa: ByteAutomaton, texts: tuple[bytes | None, ...], states: Numbers, owner: str
) -> _Folded:
    """Reads the texts of all tokens at once, from each of the start states.

    All texts are read byte by byte. Tokens that so far lead from every state to the same states
    share a function, and each pair of a function and a kind of byte is looked up once.
    """
    dead, begin = np.full_like(states, dfa.dead), states
    rows = [dead.astype(np.int32), begin.astype(np.int32)]
    numbers = {row.tobytes(): number for number, row in enumerate(rows)}
    functions = np.array([text is not None for text in texts], dtype=np.int64)
    # If all start states are dead, both rows are equal.
    functions *= numbers[rows[1].tobytes()]
    lengths = np.array([len(text or b"") for text in texts])
    starts = np.cumsum(lengths) - lengths
    kinds = dfa.kinds[np.frombuffer(b"".join(text or b"" for text in texts), np.uint8)]
    steps = dfa.table.astype(np.int32).T
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
            raise ValueError(
                f"{owner} must have fewer states for a vocabulary of {len(texts)} tokens, got "
                f"{len(states)} states and {len(rows)} classes of tokens."
            )
        functions[token_ids] = np.array(next_functions, dtype=np.int64)[inverse]
    return _Folded(functions, np.stack(rows))


def _automaton(
    dfa: ByteAutomaton, later: _Folded, first: _Folded, eos_ids: tuple[int, ...]
) -> Automaton:
    """Joins the first state and the states of later tokens, and adds the state after an EOS."""
    num_bytes = dfa.dead
    start = num_bytes
    # Tokens of one class lead to the same states, at the beginning and after other tokens.
    pairs, classes = np.unique(
        later.functions * len(first.table) + first.functions, return_inverse=True
    )
    after, at_start = np.divmod(pairs, len(first.table))
    table = np.full((num_bytes + 2, len(pairs)), -1)
    table[:num_bytes] = later.table[after][:, :num_bytes].T
    table[start] = first.table[at_start, 0]
    table[table == dfa.dead] = -1
    accepting = np.append(dfa.accepting[:num_bytes], [dfa.accepting[dfa.start], False])
    distances = _distances(table, accepting)
    useful = np.flatnonzero(_reached(table, start) & (distances < _FAR))
    order = np.concatenate([[start], useful[useful != start]])
    number = np.full(num_bytes + 2, -1)
    number[order] = np.arange(len(order))
    table = np.where(table[order] < 0, -1, number[table[order]])
    columns, merged = np.unique(table, axis=1, return_inverse=True)
    return _with_edges(columns, merged.ravel()[classes], distances[order], eos_ids)


def _with_edges(
    columns: Numbers, classes: Numbers, distances: Numbers, eos_ids: tuple[int, ...]
) -> Automaton:
    """Returns an automaton with one more state, after an EOS.

    `columns` has the next state for each state and class, -1 for none; `classes` is per token.
    """
    end = len(columns)
    is_live = np.asarray((columns >= 0).any(axis=0))
    number = np.full(is_live.size, DEAD_CLASS)
    number[is_live] = np.arange(int(is_live.sum())) + EOS_CLASS + 1
    classes = number[classes]
    classes[list(eos_ids)] = EOS_CLASS
    full = np.full((end + 1, int(is_live.sum()) + 2), -1)
    full[:end, 2:] = columns[:, is_live]
    full[:end, EOS_CLASS] = np.where(distances == 0, end, -1)
    full[end, EOS_CLASS] = end
    sources, labels = np.nonzero(full >= 0)
    examples = np.zeros(full.shape[1], dtype=np.int64)
    used_classes, first_tokens = np.unique(classes, return_index=True)
    examples[used_classes] = first_tokens
    parts = (classes, sources, labels, full[sources, labels], np.append(distances, 0), examples)
    return Automaton(*(torch.from_numpy(part.astype(np.int64)) for part in parts))


def _reached(table: Numbers, start: int) -> NDArray[np.bool_]:
    """Returns the states that can be reached from `start`, as a mask."""
    reached = np.zeros(len(table), dtype=bool)
    fresh = np.array([start])
    while fresh.size:
        reached[fresh] = True
        targets = np.unique(table[fresh])
        targets = targets[targets >= 0]
        fresh = targets[~reached[targets]]
    return reached


def _distances(table: Numbers, accepting: NDArray[np.bool_]) -> Numbers:
    """Returns the fewest tokens from each state to an accepting one; `_FAR` if none leads there."""
    far: Numbers = np.append(np.where(accepting, 0, _FAR), _FAR)
    while True:
        nearer: Numbers = np.minimum(far[:-1], far[table].min(axis=1) + 1)
        if (nearer == far[:-1]).all():
            return nearer
        far[:-1] = np.minimum(nearer, _FAR)


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

"""Merging equal states, against plain refinement by all columns."""

import numpy as np
from numpy.typing import NDArray

from dllm_decode.text.constraints.machines.tables import distances, kinds_of, smallest


def num_classes(table: NDArray[np.int32], accepting: NDArray[np.bool_]) -> int:
    """Returns the number of states that the smallest automaton has, by Moore's rounds in full."""
    groups = [int(accepts) for accepts in accepting] + [-1]
    while True:
        rows = [
            (groups[state], *(groups[target] for target in table[state].tolist()))
            for state in range(len(table))
        ]
        names = {row: number for number, row in enumerate(sorted(set(rows)))}
        finer = [names[row] for row in rows]
        if len(names) == len(set(groups[:-1])):
            return len(names)
        groups = [*finer, -1]


def random_automaton(seed: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Returns an automaton in which every state is reached, and leads to an end."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 30))
    table = draw.integers(-1, size, (size, int(draw.integers(1, 5)))).astype(np.int32)
    # A chain from the first state to the last one.
    table[:-1, 0] = np.arange(1, size)
    accepting = draw.random(size) < 0.2
    accepting[-1] = True
    return table, accepting


def test_no_automaton_of_the_same_texts_has_fewer_states() -> None:
    merged = 0
    for seed in range(300):
        table, accepting = random_automaton(seed)
        small, ends = smallest(table, accepting)
        assert len(small) == num_classes(table, accepting)
        merged += len(small) < len(table)
        draw = np.random.default_rng(seed)
        for _ in range(20):
            state, other = 0, 0
            for column in draw.integers(0, table.shape[1], 8).tolist():
                assert (state >= 0 and accepting[state]) == (other >= 0 and ends[other])
                state = table[state, column] if state >= 0 else -1
                other = small[other, column] if other >= 0 else -1
    assert merged > 10


def test_equal_sets_have_equal_tables() -> None:
    for seed in range(50):
        table, accepting = random_automaton(seed)
        order = np.random.default_rng(seed).permutation(len(table))
        number = np.append(np.argsort(order), -1).astype(np.int32)
        shuffled = number[table[order]]
        again = smallest(shuffled, accepting[order], start=int(number[0]))
        for first, second in zip(smallest(table, accepting), again, strict=True):
            assert np.array_equal(first, second)


def test_kinds_and_distances() -> None:
    table = np.array([[1, 1, -1], [2, 2, 0], [-1, -1, -1]], np.int32)
    first, kinds = kinds_of(table)
    assert first.tolist() == [0, 2]
    assert kinds.tolist() == [0, 0, 1]
    assert distances(table, np.array([False, False, True])).tolist() == [2, 1, 0]
    assert distances(table, np.array([True, False, False])).tolist() == [0, 1, -1]

"""Operations on the tables of automata: kinds of columns, distances, and merging equal states."""

import numpy as np
from numpy.typing import NDArray

from dllm_decode.text.constraints.machines.limits import require_states

Table = NDArray[np.integer]
IntArray = NDArray[np.integer]
BoolArray = NDArray[np.bool_]

# An odd number without a pattern (Steele, Lea and Flood 2014).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_RANDOM = np.random.default_rng(7).integers(1, 2**63, size=4096, dtype=np.uint64) | np.uint64(1)


class Edges:
    """The edges of a table, by the state that they lead to."""

    def __init__(self, table: Table) -> None:
        """Sorts the edges."""
        sources, columns = np.nonzero(table >= 0)
        targets = table[sources, columns]
        order = np.argsort(targets, kind="stable")
        self._sources, self._columns = sources[order], columns[order]
        self._first = np.searchsorted(targets[order], np.arange(len(table) + 1))

    def into(self, states: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the state in which each edge into one of the states begins, and its column."""
        counts = self._first[states + 1] - self._first[states]
        begins = self._first[states] - np.cumsum(counts) + counts
        places = np.repeat(begins, counts) + np.arange(int(counts.sum()))
        return self._sources[places], self._columns[places]


def kinds_of(table: Table) -> tuple[IntArray, IntArray]:
    """Returns the first column of each kind, and the kind of each column.

    Columns of one kind are equal.
    """
    rows = _mixed(np.arange(1, len(table) + 1))
    keys = (_mixed(table + 2) * rows[:, None]).sum(0)
    _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[kinds.ravel()]


def distances(table: Table, accepting: BoolArray) -> IntArray:
    """Returns the fewest steps from each state to an accepting one; -1 if none leads there."""
    edges = Edges(table)
    steps = np.where(accepting, 0, -1)
    scratch = np.empty_like(steps)
    front: IntArray = np.flatnonzero(accepting)
    num_steps = 0
    while front.size:
        num_steps += 1
        before, _ = edges.into(front)
        front = _once_each(before[steps[before] < 0], scratch)
        steps[front] = num_steps
    return steps


def reached(table: Table, start: int) -> IntArray:
    """Returns the states that can be reached from `start`, nearest first."""
    is_reached = np.zeros(len(table) + 1, dtype=bool)
    # The last entry is for -1.
    is_reached[[start, -1]] = True
    scratch = np.empty(len(table), dtype=np.int64)
    fronts = [np.array([start])]
    while fronts[-1].size:
        targets = table[fronts[-1]].ravel()
        fronts.append(_once_each(targets[~is_reached[targets]], scratch))
        is_reached[fronts[-1]] = True
    return np.concatenate(fronts)


def _once_each(states: IntArray, scratch: IntArray) -> IntArray:
    """Returns each of some states once, in order; `scratch` has an entry for each state."""
    places = np.arange(len(states))
    scratch[states[::-1]] = places[::-1]
    found: IntArray = states[scratch[states] == places]
    return found


def smallest(table: Table, accepting: BoolArray, start: int = 0) -> tuple[Table, BoolArray]:
    """Returns the automaton of the same texts with the fewest states, numbered breadth first."""
    first, kinds = kinds_of(table)
    few: Table = table[:, first]
    steps = distances(few, accepting)
    if steps[start] < 0:
        return np.full((1, table.shape[1]), -1, np.int32), np.zeros(1, bool)
    few = np.where(np.append(steps >= 0, False)[few], few, -1)
    order = reached(few, start)
    number = np.full(len(table) + 1, -1)
    number[order] = np.arange(len(order))
    few, accepting = number[few[order]], accepting[order]
    groups = _merged(few, steps[order])
    _, examples = np.unique(groups, return_index=True)
    examples = np.sort(examples)
    renumbered = np.full(len(groups) + 1, -1)
    renumbered[groups[examples]] = np.arange(len(examples))
    merged = np.append(renumbered[groups], -1)[few[examples]]
    return merged[:, kinds].astype(np.int32), accepting[examples]


def _mixed(numbers: IntArray) -> NDArray[np.uint64]:
    product = numbers.astype(np.uint64) * _FACTOR
    return product ^ (product >> np.uint64(29))


def _merged(table: Table, keys: IntArray) -> IntArray:
    """Returns a number for each state, equal for states from which the same texts are accepted.

    States with equal keys count as equal until their next states differ. States with an edge into a
    group with a new number are compared with each other, by sums of random factors over these
    edges. Those that differ from the rest of their group get a new number. This is Hopcroft's
    refinement (1971) without its bound: a large part may get the new number.
    """
    edges, factors = Edges(table), _RANDOM[: table.shape[1]]
    codes = _mixed(np.arange(1, len(table) + 1))
    groups = np.unique(keys, return_inverse=True)[1].ravel()
    count = int(groups.max()) + 1
    sizes = np.bincount(groups, minlength=len(table))
    changed: IntArray = np.arange(len(table))
    while changed.size:
        require_states(0)
        sources, columns = edges.into(changed)
        if not sources.size:
            break
        order = np.argsort(sources, kind="stable")
        sources, columns = sources[order], columns[order]
        states, begins = np.unique(sources, return_index=True)
        sums = np.add.reduceat(codes[groups[table[sources, columns]]] * factors[columns], begins)
        _, first, parts, counts = np.unique(
            sums + _mixed(groups[states] + 77),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        olds = groups[states[first]]
        np.subtract.at(sizes, olds, counts)
        is_new = ~_keeps_number(olds, counts, has_rest=sizes[olds] > 0)
        numbers = olds.copy()
        numbers[is_new] = np.arange(count, count + int(is_new.sum()))
        count += int(is_new.sum())
        sizes[numbers] += counts
        groups[states] = numbers[parts]
        changed = states[is_new[parts]]
    return groups


def _keeps_number(groups: IntArray, counts: IntArray, *, has_rest: BoolArray) -> BoolArray:
    """Returns which parts keep the number of their group: the largest, unless a rest is left.

    Each part has the number of its group, and so many states.
    """
    largest_first = np.argsort(-counts)
    largest = largest_first[np.unique(groups[largest_first], return_index=True)[1]]
    keeps = np.zeros(len(groups), dtype=bool)
    keeps[largest] = ~has_rest[largest]
    return keeps

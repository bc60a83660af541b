"""Nondeterministic automata over characters, and their deterministic form."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from dllm_decode.text.constraints.machines.languages import NUM_CHARACTERS, Language
from dllm_decode.text.constraints.machines.limits import TooLargeError, require_states

CharacterRanges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of characters: first and last character of ranges, ascending."""

Label: TypeAlias = CharacterRanges | Literal["", "^", "$"]
"""An edge reads a character of a set, or none: "" is always open, "^" at the beginning of the text
alone, and "$" at the end alone."""

_MAX_NODES = 20_000
_MAX_SUBSETS = 6_000


class Network:
    """Nodes with edges between them."""

    def __init__(self) -> None:
        """Begins without nodes."""
        self._edges: list[list[tuple[Label, int]]] = []

    def node(self) -> int:
        """Adds a node."""
        if len(self._edges) >= _MAX_NODES:
            raise TooLargeError(f"an expression of more than {_MAX_NODES} parts")
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, node: int, label: Label, target: int) -> None:
        """Adds an edge."""
        self._edges[node].append((label, target))

    def language(self, start: int, final: int) -> Language:
        """Returns the texts that lead from `start` to `final`.

        A state is a set of nodes, written as the bits of an integer.
        """
        columns, cuts = self._columns()
        nodes = range(len(self._edges))
        inner = [self._closure(node, ("",)) for node in nodes]
        at_end = sum(1 << node for node in nodes if self._closure(node, ("", "$")) >> final & 1)
        edges = [
            [(columns[label], inner[target]) for label, target in row if label in columns]
            for row in self._edges
        ]
        # Only in the first state may a text be empty, so that both ^ and $ are open.
        is_empty_text = bool(self._closure(start, ("", "^", "$")) >> final & 1)
        queue = [self._closure(start, ("", "^"))]
        numbers: dict[int, int] = {}
        rows = []
        for subset in queue:
            targets = [0] * len(cuts)
            for node in _bits(subset):
                for numbers_of_columns, mask in edges[node]:
                    for column in numbers_of_columns:
                        targets[column] |= mask
            for target in targets:
                if target and target not in numbers:
                    numbers[target] = len(queue)
                    queue.append(target)
            rows.append([numbers[target] if target else -1 for target in targets])
            if len(rows) % 64 == 0:
                require_states(len(queue), _MAX_SUBSETS)
        accepting = np.array([bool(subset & at_end) for subset in queue])
        accepting[0] = is_empty_text
        return Language(np.array(cuts), np.array(rows), accepting)

    def _columns(self) -> tuple[dict[Label, list[int]], list[int]]:
        """Returns the numbers of the columns of each set of characters, and where columns begin."""
        labels = {label for row in self._edges for label, _ in row if not isinstance(label, str)}
        bounds = {bound for ranges in labels for low, high in ranges for bound in (low, high + 1)}
        cuts = sorted({0} | bounds - {NUM_CHARACTERS})
        columns: dict[Label, list[int]] = {}
        for ranges in labels:
            columns[ranges] = []
            for low, high in ranges:
                columns[ranges] += range(bisect_left(cuts, low), bisect_right(cuts, high))
        return columns, cuts

    def _closure(self, node: int, labels: Sequence[Label]) -> int:
        """Returns the nodes that edges of some labels lead to from a node, as bits."""
        require_states(0)
        queue, mask = [node], 1 << node
        for source in queue:
            for label, target in self._edges[source]:
                if label in labels and not mask >> target & 1:
                    mask |= 1 << target
                    queue.append(target)
        return mask


def _bits(mask: int) -> list[int]:
    """Returns the places of the bits that are 1."""
    return [place for place, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]

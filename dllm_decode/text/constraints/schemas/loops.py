"""Finds the nodes of a schema that lead back to themselves."""

from typing import NamedTuple

from dllm_decode.text.constraints.machines.limits import MAX_STATES, require_states
from dllm_decode.text.constraints.schemas.reader import Reader
from dllm_decode.text.constraints.schemas.values import ANY, NONE, Arrays, Node, Objects


class Loops(NamedTuple):
    """The nodes of loops.

    Attributes:
        inside: Nodes of loops, and nodes between two loops.
        leading: Nodes from which a loop can be reached, those of loops included.
    """

    inside: frozenset[Node]
    leading: frozenset[Node]


def find_loops(reader: Reader, root: Node) -> Loops:
    """Returns the loops of all nodes that can be reached from one."""
    below: dict[Node, set[Node]] = {}
    queue = [root]
    for node in queue:
        if node in below:
            continue
        require_states(len(below), MAX_STATES)
        values = reader.values(node)
        shapes: list[Arrays | Objects] = [*values.arrays, *values.objects]
        below[node] = {inner for shape in shapes for inner in shape.nodes()} - {ANY, NONE}
        queue.extend(sorted(below[node], key=repr))
    above: dict[Node, set[Node]] = {node: set() for node in below}
    for node, inner_nodes in below.items():
        for inner in inner_nodes:
            above[inner].add(node)
    leading = _without_ends(set(below), below, above)
    return Loops(frozenset(_without_ends(set(leading), above, below)), frozenset(leading))


def _without_ends(
    nodes: set[Node], below: dict[Node, set[Node]], above: dict[Node, set[Node]]
) -> set[Node]:
    """Removes nodes that have none of the nodes below them, until no more can be removed."""
    num_below = {node: len(below[node] & nodes) for node in nodes}
    queue = [node for node, count in num_below.items() if count == 0]
    for node in queue:
        nodes.discard(node)
        for upper in above[node] & num_below.keys():
            num_below[upper] -= 1
            if num_below[upper] == 0:
                queue.append(upper)
    return nodes

"""Masks and positions with which a causal model reads a tree of drafts."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def tree_mask(
    held: Bool[Tensor, "B S"],
    present: Bool[Tensor, "B W"],
    tree: Bool[Tensor, "B N N"],
    *,
    root: int,
) -> Bool[Tensor, "B W K"]:
    """Returns which keys each column sees: slots with a token, and columns that are present.

    `tree` has the ancestors of each node; the first node is the column after the root.
    """
    width, first, after = present.shape[1], root + 1, root + 1 + tree.shape[1]
    diagonal = torch.eye(width, dtype=torch.bool, device=held.device)
    seen = torch.ones_like(diagonal).tril()
    # Nodes, and the padding after them, see no other node except those that the tree names.
    seen[first:, first:] = diagonal[first:, first:]
    seen = seen.repeat(len(tree), 1, 1)
    seen[:, first:after, first:after] = tree
    seen = (seen & present[:, None]) | diagonal
    return torch.cat([held[:, None].expand(-1, width, -1), seen], -1)


def tree_positions(
    columns: Int[Tensor, "B W"], tree: Bool[Tensor, "B N N"], *, root: int
) -> Int[Tensor, "B W"]:
    """Returns each column's position after the past; a node has the root's plus its depth."""
    # Padding columns have the position of the root.
    positions = columns.minimum(columns[:, root : root + 1]).clamp(min=0)
    positions[:, root + 1 : root + 1 + tree.shape[1]] += tree.sum(-1)
    return positions


def ancestors(parents: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Returns for each node which nodes it sees: its ancestors and itself.

    A path gives the lower triangle (causal attention), and nodes that all follow the root give the
    diagonal: branches that do not see each other.

    Args:
        parents: For each node the number of the node that it follows, -1 at the top. A parent
            has a smaller number than its children.
    """
    num_nodes = parents.shape[1]
    diagonal = torch.eye(num_nodes, dtype=torch.bool, device=parents.device)
    # The root is no node, so its entry, 0, is removed.
    steps = torch.nn.functional.one_hot(parents + 1, num_nodes + 1)[..., 1:]
    seen = (diagonal | steps.bool()).float()
    # Each node sees `reach` generations; the product sees twice as many.
    reach = 1
    while reach < num_nodes:
        seen, reach = (seen @ seen).clamp_(max=1.0), 2 * reach
    return seen > 0.0

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
    """Says which keys each column sees: slots that are held, and columns that are present.

    `tree` has the ancestors of each node; the first node is the column after the root.
    """
    width, first, behind = present.shape[1], root + 1, root + 1 + tree.shape[1]
    own = torch.eye(width, dtype=torch.bool, device=held.device)
    seen = torch.ones_like(own).tril()
    # Nodes, and what fills up the columns behind them, see no other node unless the tree says.
    seen[first:, first:] = own[first:, first:]
    seen = seen.repeat(len(tree), 1, 1)
    seen[:, first:behind, first:behind] = tree
    seen = (seen & present[:, None]) | own
    return torch.cat([held[:, None].expand(-1, width, -1), seen], -1)


def tree_positions(
    columns: Int[Tensor, "B W"], tree: Bool[Tensor, "B N N"], *, root: int
) -> Int[Tensor, "B W"]:
    """Returns the position of each column behind the past: a node's is its depth below the root."""
    # Columns that fill up a row have the position of the root.
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
    own = torch.eye(num_nodes, dtype=torch.bool, device=parents.device)
    # The root is no node: its place, 0, is cut off.
    steps = torch.nn.functional.one_hot(parents + 1, num_nodes + 1)[..., 1:]
    seen = (own | steps.bool()).float()
    # Each node sees `reach` generations; the product sees twice as many.
    reach = 1
    while reach < num_nodes:
        seen, reach = (seen @ seen).clamp_(max=1.0), 2 * reach
    return seen > 0.0

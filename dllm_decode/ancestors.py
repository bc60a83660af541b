"""The attention mask of a tree: each node sees its ancestors and itself."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

ROOT = -1


def ancestors(parents: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Returns for each node which nodes it sees: its ancestors and itself.

    A path gives the lower triangle (causal attention), and nodes that all follow the root give the
    diagonal: branches that do not see each other.

    Args:
        parents: For each node the number of the node that it follows, `ROOT` at the top. A parent
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

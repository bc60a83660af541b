"""Drafts from the tokens that the target thought likely in earlier rounds (token recycling)."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.sending import send
from dllm_decode.verify.acceptance import Verdict
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import count_from
from samplers.logits.statistics import top_k

_MAX_K = 10
_UNREAD = -1


@dataclass(frozen=True)
class Recycling(Drafting):
    """Drafts a tree of the tokens that the target found likely after a token when last it read it.

    The memory of a row has, for every token of the vocabulary, the `k` tokens that were likeliest
    after the token, in descending order, as the target saw them when it last read the token: in the
    row's text or in a draft that it rejected. The prompt is not part of it. The nodes of the tree
    are all paths whose ranks, 1 for the likeliest token, add up to at most `k`: 2^k - 1 nodes,
    which reach k tokens ahead.

        k = 3              ranks of the paths
        last token         1       2     3
                           1 1     2 1
                           1 2
                           1 1 1

    A row reads its own memory alone, so that its drafts do not depend on other rows.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language
    Models with Token Recycling", https://arxiv.org/abs/2408.08696, adjacency matrix and tree.
    Differs: The memory begins empty and ends with the row; the authors keep it for later prompts.
    Their tree has 80 nodes, chosen by hit rates on held-out text. If a token is read several times
    in one round, an accepted one counts before a rejected one, then the first.

    Attributes:
        k: Tokens remembered after each token, from 1 to 10.

    Raises:
        ValueError: If the attribute is outside its range.
    """

    k: Annotated[int, count_from(1, "tokens")] = 6

    num_forwards = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k > _MAX_K:
            raise ValueError(
                f"k must be at most {_MAX_K} tokens, since a tree has 2^k - 1 nodes, got {self.k}."
            )

    def first_memory(self, start: DraftStart, vocab_size: int) -> Int[Tensor, "B ..."]:
        shape = (len(start.first_unsettled), vocab_size, min(self.k, vocab_size))
        return torch.full(shape, _UNREAD, device=start.first_unsettled.device)

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        memory = start.memory
        assert memory is not None
        device = memory.device
        tree = _tree_shape(memory.shape[-1])
        rows = torch.arange(len(memory), device=device)[:, None]
        nodes = above = start.context(1)
        for level in tree.levels:
            before = above[:, send(level.parents, device)]
            above = memory[rows, before.clamp(min=0), send(level.ranks, device)]
            above = above.masked_fill(before == _UNREAD, _UNREAD)
            nodes = torch.cat([nodes, above], -1)
        nodes = nodes[:, 1:]
        kept = (nodes != _UNREAD) & (send(tree.depths, device) < lengths[:, None])
        parents = send(tree.parents, device).expand_as(nodes)
        return Draft(nodes, kept.sum(-1), parents=parents).subtree(kept)

    def memory_after(
        self,
        start: DraftStart,
        draft: Draft,
        target_logits: Float[Tensor, "B K1 V"],
        verdict: Verdict,
    ) -> Int[Tensor, "B ..."]:
        memory, places = start.memory, verdict.places
        assert memory is not None
        assert places is not None
        read = torch.cat([start.context(1), draft.tokens], -1)[:, : target_logits.shape[1]]
        columns = torch.arange(read.shape[1], device=read.device)
        is_accepted = torch.arange(places.shape[1], device=read.device) < verdict.accepted[:, None]
        # The last token of the text, in column 0, is on the path of every row.
        path = torch.where(is_accepted, places + 1, 0)
        on_path = (columns == 0).expand_as(read).scatter(1, path, True)
        # If several columns read the same token, the greatest number counts.
        numbers = len(columns) * (1 + on_path) - columns
        is_read = columns <= draft.counts[:, None]
        numbers, read = numbers * is_read, read * is_read
        greatest = torch.zeros_like(memory[..., 0]).scatter_reduce(1, read, numbers, "amax")
        is_kept = is_read & (numbers == greatest.gather(1, read))
        rows, chosen = is_kept.nonzero(as_tuple=True)
        likely = top_k(target_logits, memory.shape[-1]).tokens
        return memory.index_put((rows, read[rows, chosen]), likely[rows, chosen])


class _TreeLevel(NamedTuple):
    """The nodes of one depth.

    Attributes:
        parents: Index of each node's parent in the level above.
        ranks: Index of each node's token among those that may follow its parent.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]


class _TreeShape(NamedTuple):
    """Where the nodes of a tree are, level by level.

    Attributes:
        levels: The levels.
        parents: Index of each node's parent among all nodes; -1: the last token of the text.
        depths: Nodes before each node on its path.
    """

    levels: tuple[_TreeLevel, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]


@cache
def _tree_shape(k: int) -> _TreeShape:
    """Returns the tree of all paths whose ranks, counted from 1, add up to at most `k`."""
    levels: list[_TreeLevel] = []
    parents: list[int] = []
    depths: list[int] = []
    sums, first = [0], -1
    while True:
        nodes = [(at, rank) for at, total in enumerate(sums) for rank in range(k - total)]
        if not nodes:
            return _TreeShape(tuple(levels), tuple(parents), tuple(depths))
        levels.append(_TreeLevel(*zip(*nodes, strict=True)))
        parents += [first + at for at, _ in nodes]
        depths += [len(levels) - 1] * len(nodes)
        sums, first = [sums[at] + rank + 1 for at, rank in nodes], first + len(sums)

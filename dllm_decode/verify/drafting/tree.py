"""Draft trees (DDTree): the most probable prefixes of an answer, for one forward of a target."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.sending import send
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import NonNegative, count_from
from samplers.logits.float64 import widest
from samplers.logits.statistics import log_normaliser, num_leading, top_k


class _LikelyTokens(NamedTuple):
    """The likeliest tokens of each position, in descending order, and their log-probabilities."""

    tokens: Int[Tensor, "B K C"]
    log_probs: Float[Tensor, "B K C"]


class _Level(NamedTuple):
    """The best prefixes of one length, in descending order.

    Attributes:
        tokens: The last token of each prefix.
        parents: Index in the level above of the prefix that each one continues.
        scores: Log-probability of the whole prefix; -inf in unused places.
    """

    tokens: Int[Tensor, "B H"]
    parents: Int[Tensor, "B H"]
    scores: Float[Tensor, "B H"]


@dataclass(frozen=True)
class Tree(Drafting):
    """Drafts the most probable prefixes of the answer as a tree, all read in one forward.

    A mask predictor gives a distribution at every position. The probability of a prefix is the
    product of its tokens' probabilities; the `budget` most probable ones are closed under leaving
    out the last token, so they are the nodes of a tree. The sum of their probabilities is the
    number of tokens that will be accepted if the mask predictor is right; no other tree with as
    many nodes has a larger sum. Among equal probabilities, the shorter prefix comes first; then
    the earlier parent, the likelier token and the lower id decide in turn. An EOS has no children.

    The text is the target's for any tree; see `ARVerify`. The draft's length bounds how deep a tree
    is, not how many nodes it has.

    A node is a column of the target's forward. With `column_cost` r, a round costs 1 + r n for n
    nodes and gives 1 + S tokens, S being the sum of their probabilities; a node is added as long as
    it raises the quotient.

    With `num_forwards` above 1, the mask predictor looks again after the sampler has committed
    tokens to the draft, as in `PathSearch`; a position keeps the distribution from which its token
    was committed, so that the tree still has alternatives to it.

    Source: Ringel and Romano 2026, "Accelerating Speculative Decoding with Block Diffusion Draft
    Trees" (DDTree), https://arxiv.org/abs/2604.12989; the authors' `build_ddtree_tree` uses a heap.
    Differs: Built level by level for all rows at once, which gives the same nodes: only the
    `budget` best prefixes of one length can have a child among the `budget` best of all. The
    authors break ties by the tuple of ranks, and fill the budget always. `column_cost` and several
    forwards are not in the paper.

    Attributes:
        budget: Nodes of a row's tree at most, at least 1.
        max_candidates: Tokens considered at each position; the authors consider `budget`.
        column_cost: Cost of a column of the target, as a share of a round without drafts, at
            least 0; 0 fills the budget.
        num_forwards: Forwards of the mask predictor that a draft is made from, at least 1.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    budget: Annotated[int, count_from(1)] = 32
    max_candidates: Annotated[int, count_from(1)] = 32
    column_cost: NonNegative = 0.0
    num_forwards: Annotated[int, count_from(1)] = 1

    keeps_alternatives = True

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        """Returns the tree of each row, nodes in descending order of probability."""
        candidates = self._candidates(logits)
        ends = send(start.canvas.eos_ids, logits.device, torch.long)
        zeros = torch.zeros_like(lengths)[:, None]
        above = _Level(zeros - 1, zeros, zeros.to(widest(zeros.device)))
        levels: list[_Level] = []
        best = above.scores[:, :0]
        for depth in range(logits.shape[1]):
            level = self._extend(above, candidates, depth, ends)
            # A prefix less likely than the last one within the budget has no likelier child.
            best = torch.cat([best, level.scores], -1).sort(dim=-1, descending=True).values
            best = best[:, : self.budget]
            hopeless = (depth >= lengths)[:, None]
            if best.shape[1] == self.budget:
                hopeless = hopeless | (level.scores < best[:, -1:])
            above = level._replace(scores=level.scores.masked_fill(hopeless, -torch.inf))
            # NaN logits must make a tree too, because the engine reports them later.
            if levels and not (above.scores > -torch.inf).any():
                break
            levels.append(above)
        return self._best_nodes(levels)

    def _candidates(self, logits: Float[Tensor, "B K V"]) -> _LikelyTokens:
        top = top_k(logits, min(self.max_candidates, logits.shape[-1]))
        log_probs = top.logits - log_normaliser(logits, top.tokens[..., 0])[..., None]
        log_probs = log_probs.to(widest(log_probs.device))
        # Ties are ordered by id. Rounding must not make a child likelier than its parent.
        order = top.tokens.argsort(-1)
        ranking = log_probs.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
        order = order.gather(-1, ranking)
        return _LikelyTokens(
            top.tokens.gather(-1, order), log_probs.gather(-1, order).clamp(max=0.0)
        )

    def _extend(
        self, above: _Level, candidates: _LikelyTokens, depth: int, ends: Int[Tensor, " E"]
    ) -> _Level:
        """Returns the best prefixes that are one token longer."""
        tokens = candidates.tokens[:, depth]
        # Prefixes that have ended come after all others.
        ended = torch.isin(above.tokens, ends)
        scores, order = above.scores.masked_fill(ended, -torch.inf).sort(
            dim=-1, descending=True, stable=True
        )
        gains = candidates.log_probs[:, depth]
        pairs = self._pairs(scores.shape[1], tokens.shape[1], device=tokens.device)
        parents, ranks = pairs // tokens.shape[1], pairs % tokens.shape[1]
        scores, chosen = (
            (scores[..., None] + gains[:, None])
            .flatten(1)[:, pairs]
            .sort(dim=-1, descending=True, stable=True)
        )
        scores, chosen = scores[:, : self.budget], chosen[:, : self.budget]
        parents, added = parents[chosen], tokens.gather(1, ranks[chosen])
        return _Level(added, order.gather(1, parents), scores)

    def _pairs(
        self, num_parents: int, num_candidates: int, *, device: torch.device
    ) -> Int[Tensor, " N"]:
        """Lists which candidates of which prefixes may be among the best, as flat indices.

        All likelier candidates of all likelier prefixes are better.
        """
        prefixes = torch.arange(num_parents, device=device)[:, None] + 1
        candidates = torch.arange(num_candidates, device=device) + 1
        return (prefixes * candidates <= self.budget).flatten().nonzero().squeeze(-1)

    def _best_nodes(self, levels: list[_Level]) -> Draft:
        """Returns the best nodes of all levels in order, without nodes that are not worth the cost.

        The sort is stable and no node is likelier than its parent, so that parents come first.
        """
        tokens, parents, scores = (
            torch.cat([part[index] for part in levels], -1) for index in range(3)
        )
        starts = [0, *accumulate(level.tokens.shape[1] for level in levels)]
        for above, start, end in zip([-1, *starts], starts, starts[1:], strict=False):
            parents[:, start:end] = parents[:, start:end] + above if start else -1
        scores, order = scores.sort(dim=-1, descending=True, stable=True)
        places = order.argsort(-1)
        tokens, parents = tokens.gather(1, order), parents.gather(1, order)
        parents = torch.where(parents < 0, -1, places.gather(1, parents.clamp(min=0)))
        counts = self._num_worth(scores[:, : self.budget])
        return Draft(tokens[:, : self.budget], counts, parents=parents[:, : self.budget])

    def _num_worth(self, scores: Float[Tensor, "B N"]) -> Int[Tensor, " B"]:
        """Counts the nodes that raise a round's tokens per unit of cost."""
        shares = scores.exp()
        tokens = 1.0 + shares.cumsum(-1) - shares
        nodes = torch.arange(scores.shape[1], device=scores.device)
        worth = shares * (1.0 + self.column_cost * nodes) >= self.column_cost * tokens
        return num_leading(worth & (scores > -torch.inf)).clamp(min=1)

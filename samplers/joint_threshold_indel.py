"""Two thresholds, and tokens that delete and insert positions of the open block (LLaDA 2.2)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import Probability, count_from
from samplers.facts import Fact
from samplers.logits.statistics import highest, highest_one
from samplers.view import View


class InDelState(NamedTuple):
    """The history of a block.

    Attributes:
        original: Positions whose content was [MASK] when the block was opened; moves with the
            content. Others hold, or were filled from, a [MASK] of a deletion or insertion.
        steps: Steps of the row.
        post_steps: Steps that began without an original [MASK]; by the hub's rule in a row.
        seen: Tokens of the block before each step; -1: no such step.
        tried: The token that each step chose for each position; -1: none.
    """

    original: Bool[Tensor, "B W"]
    steps: Int[Tensor, " B"]
    post_steps: Int[Tensor, " B"]
    seen: Int[Tensor, "B S W"]
    tried: Int[Tensor, "B S W"]


@dataclass(frozen=True)
class JointThresholdInDel(RevisingSampler[InDelState]):
    """Commits and edits by two thresholds; two of the tokens delete or insert a position.

    A step chooses masks to fill and tokens to edit, as `JointThreshold` does. If the model proposes
    `delete_id` for one of them, the position is taken out, the positions after it move to the left,
    and the block is filled up with [MASK]. If it proposes `split_id`, a [MASK] is inserted before
    the position, whose content stays, and contents that no longer fit into the block are dropped:

        before     a  b  c  d  _
        proposals  a  DELETE  SPLIT  d  e
        after      a  _  c  d  e

    Masks of the opened block are *original*, those of deletions and insertions are not. With n
    masks that are not original, a step fills all masks whose confidence exceeds `threshold` if
    these are more than n, else the n + 1 most confident ones; once no original mask is left, all
    masks. A step on a block that was seen before takes another token at the least confident of its
    positions: the likeliest one that was never chosen there.

    The block ends when a step chooses nothing, in the `max_edit_steps`-th step without an original
    mask, or after as many steps as it had masks and `max_edit_steps` more. This last step fills
    all masks, and takes the likeliest token that is neither DELETE nor SPLIT. Only positions of the
    open block move; given tokens keep their places, and others move past them.

    By the rule "hub", step t = 0, 1, ... of a block with m open positions fills at least
    n + floor(m / `steps`) masks, one more if t < m mod `steps`, and all masks from t = `steps` on;
    a step may choose nothing. The `max_edit_steps` count only in a row: an original mask, such as
    one that moves back into the masks, begins the count anew. There is no other limit of steps.

    Source: LLaDA 2.2, https://github.com/inclusionAI/LLaDA2.X. "sglang" is the rule of SGLang's
    `joint_threshold_indel.py` at 0fbe7e4, of the open pull request
    https://github.com/sgl-project/sglang/pull/31773. "hub" is that of `generate` in the checkpoint,
    as two ports describe it. The defaults are the published setting and ids of LLaDA2.2-flash.
    Differs: While a block holds no token, DELETE and SPLIT are not taken, and a mask is filled,
    since a step has to change the canvas. [MASK] is never proposed. SGLang's limit of steps counts
    the length of a block, which is more than its masks if the prompt ends inside the block. No
    forward is spent on storing keys and values. SGLang is greedy. The hub draws another token at a
    random position if the block after a step was seen before; here its rule does as SGLang's.
    Recorded episodes of both rules are from loops that were written from descriptions.

    Attributes:
        threshold: Probability, in [0, 1], that a proposal must exceed to be committed.
        edit_threshold: Probability, in [0, 1], that a token must exceed to take another's place.
        max_edit_steps: Steps without an original mask, at least 0.
        delete_id: The token that deletes a position.
        split_id: The token that inserts a [MASK].
        rule: "sglang" or "hub", see above.
        steps: Steps, at least 1, over which the rule "hub" spreads the masks; the other has none.

    Raises:
        ValueError: If an attribute is outside its range, or the model does not have both tokens.
    """

    threshold: Probability = 0.5
    edit_threshold: Probability = 0.0
    max_edit_steps: Annotated[int, count_from(0, "steps")] = 16
    delete_id: Annotated[int, count_from(0)] = 156930
    split_id: Annotated[int, count_from(0)] = 156931
    rule: Literal["sglang", "hub"] = "sglang"
    steps: Annotated[int, count_from(1, "steps")] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delete_id == self.split_id:
            raise ValueError(f"delete_id and split_id must differ, got {self.delete_id} twice.")

    @property
    def needs(self) -> frozenset[Fact]:
        # A verifier that changes part of a decision would change part of a move.
        return super().needs | {Fact.SAMPLER_DECIDES}

    def max_steps(self, num_masks: int) -> int:
        limit = num_masks if self.rule == "sglang" else self.steps
        return limit + self.max_edit_steps + 1

    def init(self, view: View) -> InDelState:
        """Returns the history of a block in which every open position is an original mask."""
        if max(self.delete_id, self.split_id) >= view.vocab_size:
            raise ValueError(
                f"delete_id and split_id must be tokens of the model, which has {view.vocab_size}, "
                f"got {self.delete_id} and {self.split_id}. Use JointThreshold() for a model that "
                "was not trained to insert and delete."
            )
        none = torch.zeros_like(view.tokens[:, 0])
        never = torch.full_like(view.tokens, -1)
        never = never[:, None].repeat(1, self.max_steps(view.tokens.shape[1]), 1)
        return InDelState(view.eligible, none, none, never, never)

    def step(self, view: View, state: InDelState) -> tuple[Decision, InDelState]:
        masks = view.eligible & view.masked
        steps = state.steps + view.eligible.any(-1)
        is_post = ~(masks & state.original).any(-1)
        post_steps = state.post_steps + is_post
        if self.rule == "hub":
            post_steps = post_steps * is_post
        ends = is_post & (post_steps >= self.max_edit_steps)
        if self.rule == "sglang":
            ends |= steps > view.eligible.sum(-1) + self.max_edit_steps
        fill, ends = self._masks_to_fill(view, masks & state.original, ends, state.steps)
        edit = view.eligible & ~masks & (view.confidence > self.edit_threshold)
        chosen = fill | edit & (view.proposal != view.tokens)
        is_plain = (ends | _is_blank(view))[:, None]
        tokens = torch.where(is_plain, self._plain_proposals(view), view.proposal)
        tokens = torch.where(ends[:, None], tokens, self._with_untried(view, chosen, tokens, state))
        at = state.steps[:, None, None].expand(-1, 1, masks.shape[1])
        seen = state.seen.scatter(1, at, view.tokens[:, None])
        tried = state.tried.scatter(1, at, torch.where(chosen, tokens, -1)[:, None])
        empty, tokens, original = self._contents_after(view, chosen, tokens, state.original)
        settle = view.eligible & (ends | ~(chosen | masks).any(-1))[:, None]
        decision = Decision(view.eligible & ~empty, tokens, settle, empty & ~masks)
        return decision, InDelState(original, steps, post_steps, seen, tried)

    def _masks_to_fill(
        self,
        view: View,
        original: Bool[Tensor, "B W"],
        ends: Bool[Tensor, " B"],
        step: Int[Tensor, " B"],
    ) -> tuple[Bool[Tensor, "B W"], Bool[Tensor, " B"]]:
        """Returns the masks that the step fills, and the rows whose block ends."""
        masks = view.eligible & view.masked
        least, fills_all = torch.ones_like(step), ~original.any(-1)
        if self.rule == "hub":
            num_open = view.eligible.sum(-1)
            share = num_open // self.steps + (step < num_open % self.steps)
            least, fills_all = torch.maximum(share, _is_blank(view).long()), step >= self.steps
        least = least + (masks & ~original).sum(-1)
        confident = masks & (view.confidence > self.threshold)
        are_enough = (confident.sum(-1) >= least)[:, None]
        fill = torch.where(are_enough, confident, highest(view.confidence, masks, least))
        fill = torch.where(fills_all[:, None], masks, fill)
        if not self.max_edit_steps:
            ends = ends | ~(original & ~fill).any(-1)
        return torch.where(ends[:, None], masks, fill), ends

    def _plain_proposals(self, view: View) -> Int[Tensor, "B W"]:
        """Returns the proposals, with the likeliest other token in place of DELETE and SPLIT."""
        tokens = view.proposal
        for candidate in view.top_k(3).tokens.flip(-1).unbind(-1):
            tokens = torch.where(self._is_move(candidate), tokens, candidate)
        return torch.where(self._is_move(view.proposal), tokens, view.proposal)

    def _is_move(self, tokens: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
        """Returns which tokens are DELETE or SPLIT."""
        return (tokens == self.delete_id) | (tokens == self.split_id)

    def _with_untried(
        self, view: View, chosen: Bool[Tensor, "B W"], tokens: Int[Tensor, "B W"], state: InDelState
    ) -> Int[Tensor, "B W"]:
        """Returns the tokens, with another one in rows whose block was seen before."""
        repeats = (state.seen == view.tokens[:, None]).all(-1).any(-1)
        least_sure = highest_one(-view.confidence, chosen)
        column = least_sure.long().argmax(-1)
        rows = torch.arange(len(column), device=column.device)
        logits, tried = view.logits[rows, column], state.tried[rows, :, column]
        # The first entry takes the -1 of steps that chose nothing there.
        excluded = view.masked.new_zeros(len(rows), 1 + view.vocab_size)
        excluded = excluded.scatter(1, tried + 1, True)[:, 1:]
        for token in (self.delete_id, self.split_id):
            excluded[:, token] |= _is_blank(view)
        best = logits.masked_fill(excluded, -torch.inf).max(-1)
        repeats = repeats & best.values.isfinite()
        return torch.where(least_sure & repeats[:, None], best.indices[:, None], tokens)

    def _contents_after(
        self,
        view: View,
        chosen: Bool[Tensor, "B W"],
        tokens: Int[Tensor, "B W"],
        original: Bool[Tensor, "B W"],
    ) -> tuple[Bool[Tensor, "B W"], Int[Tensor, "B W"], Bool[Tensor, "B W"]]:
        """Returns the positions that are [MASK] after the step, the tokens, and the originals."""
        deletes, splits = (chosen & (tokens == token) for token in (self.delete_id, self.split_id))
        written = chosen & ~splits
        content = torch.where(written, tokens, view.tokens)
        # The n-th open position, from 0, gets the content of the first position such that all
        # contents up to there take more than n positions.
        ends = (view.eligible.long() + splits.long() - deletes.long()).cumsum(-1)
        ranks = view.eligible.cumsum(-1) - 1
        source = torch.searchsorted(ends, ranks, right=True)
        is_there = source < ends.shape[1]
        source = source.clamp(max=ends.shape[1] - 1)
        is_inserted = splits.gather(1, source) & (ends.gather(1, source) - ranks == 2)
        is_new = view.eligible & (~is_there | is_inserted)
        was_empty = (view.masked & ~written).gather(1, source)
        empty = view.eligible & (is_new | was_empty)
        return empty, content.gather(1, source), original.gather(1, source) & ~is_new


def _is_blank(view: View) -> Bool[Tensor, " B"]:
    """Returns the rows whose open block holds no token."""
    return ~(view.eligible & ~view.masked).any(-1)

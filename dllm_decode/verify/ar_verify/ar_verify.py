"""Verification by an autoregressive model (DiffuSpec): it writes, the mask predictor drafts."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.models.targets.causal import CausalTarget, Past
from dllm_decode.session import Session
from dllm_decode.sizes import round_up
from dllm_decode.verify.ar_verify.acceptance import accept
from dllm_decode.verify.ar_verify.draft_length import DraftLength, Lengths
from dllm_decode.verify.ar_verify.drafting.base import Draft, Drafting
from dllm_decode.verify.ar_verify.drafting.path_search import PathSearch
from dllm_decode.verify.ar_verify.target_round import (
    ask_drafter,
    ask_target,
    check_target,
    first_masks,
    require_target,
    whole_answer,
    write,
)
from dllm_decode.verify.base import Verifier, settle
from samplers.base import Sampler, first_state, next_step
from samplers.checks import require_plugin
from samplers.logits.statistics import certain_where, leading, most_likely
from samplers.state import take_state

_STRIDE = 16


class TargetState(NamedTuple):
    """What the target has read, and how long the next drafts are.

    Attributes:
        past: The target's keys and values.
        lengths: Of the next drafts.
    """

    past: Past
    lengths: Lengths


@dataclass(frozen=True)
class ARVerify(Verifier[TargetState]):
    """Decodes as a causal target would alone, several tokens for each of its forwards.

    One round has three parts. The mask predictor looks at the canvas. `drafting` makes a draft of
    what it sees: a path of tokens or a tree of paths. The target reads the draft in one forward,
    accepts its tokens from left to right as far as they are as good as its own, and adds one token
    of its own: in place of the first that is not, or behind a draft that is accepted whole.

    Searched drafts (`PathSearch`, `Tree`) are accepted as far as they say what the target would
    write: its most likely token at temperature 0, else a draw from its distribution with noise
    keyed by seed, row and position. So the answer is that of the target alone, whatever the drafts
    are worth, and at a temperature even the same sample; rounding aside, since reading many tokens
    at once may round differently. A drawn draft (`Sampled`) is accepted by the ratio of both
    models' probabilities: the answer follows the target's law too, but which answer a seed gives
    depends on the drafts; with a cache, also on the other rows, since they have a say in what it
    computes.

    Trees are not drawn: for a tree of chosen tokens no rule accepts more often, since a written
    token must follow the target's law, and the probability that the target says a child is all
    there is to accept.

    The answer ends with one of the target's EOS tokens and is written from left to right; blocks do
    not matter. The sampler is only asked by a drafting with several forwards. The target reads each
    token once; keys and values of rejected tokens are dropped. The mask predictor may have any
    cache, since drafts may be approximate; `FreeCache()` keeps what stands to the left of the
    drafts, the others start anew in each round.

    Source: Li et al. 2025, "DiffuSpec: Unlocking Diffusion Language Models for Speculative
    Decoding", https://arxiv.org/abs/2510.02358.
    Differs: Rows at their own pace. The mask predictor sees the whole rest of the answer, not the
    draft's part alone. At temperatures above 0, the paper accepts a searched token with probability
    min(1, p/q), which is only right for tokens drawn from q and favours what the search likes.

    Attributes:
        target: Writes the answer.
        draft_length: How many positions a draft may reach.
        drafting: What is drafted: `PathSearch()`, `Tree()` or `Sampled()`.

    Raises:
        ValueError: If an attribute is none of these.
    """

    target: CausalTarget
    draft_length: DraftLength = field(default_factory=DraftLength)
    drafting: Drafting = field(default_factory=PathSearch)

    def __post_init__(self) -> None:
        require_target("ARVerify", self.target)
        require_plugin("draft_length", self.draft_length, DraftLength, "DraftLength(8, 8)")
        require_plugin("drafting", self.drafting, Drafting, "PathSearch() or Tree()")

    @property
    def files(self) -> tuple[Path, ...]:
        return self.target.files

    def check(self, model: MaskPredictor) -> None:
        check_target(self.target, model, verifier="ARVerify")

    def eos_ids(self, model: MaskPredictor) -> tuple[int, ...]:
        return self.target.eos_ids

    def blocks(self, canvas: Canvas, block_length: int) -> Iterator[Block]:
        return whole_answer(canvas, self.target, verifier="ARVerify")

    @property
    def asks_sampler(self) -> bool:
        return self.drafting.num_forwards > 1

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def advance(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        carry: TargetState | None,
    ) -> tuple[Canvas, TargetState]:
        if carry is None:
            past, lengths = self.target.start(len(canvas)), self.draft_length.first(canvas.rows)
        else:
            past, lengths = carry
        first = first_masks(canvas)
        left = canvas.masked.sum(-1)
        wanted = torch.minimum(lengths.length, left)
        logits = self._look(session, sampler, canvas, wanted)
        draft = self.drafting.draft(session, canvas, logits, wanted)
        judged = ask_target(session, self.target, canvas, draft, past)
        tokens, accepted, places = accept(session, canvas, draft, judged.logits)
        # The target's token after the last accepted one: a correction, or one more.
        num = torch.minimum(accepted + 1, left)
        num = torch.minimum(num, leading(~canvas.is_eos(tokens)) + 1)
        session.count_drafts(canvas, drafted=draft.counts, accepted=accepted)
        drafted = _num_drafted(canvas, logits, wanted)
        after = self.draft_length.after(lengths, drafted, accepted)
        canvas = write(canvas, first, Draft(tokens, num))
        return canvas, TargetState(judged.past(num, places), after)

    def _look(
        self, session: Session, sampler: Sampler, canvas: Canvas, wanted: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K V"]:
        """Returns what the mask predictor says of each row's next positions."""
        first = first_masks(canvas)
        bounds = torch.stack([first.min(), first.max(), (first + wanted).max(), wanted.max()])
        start, last, end, longest = bounds.tolist()
        # One position more than drafted: the target's own token goes there, and observers see it.
        # Few widths, since libraries keep scratch memory for each.
        width = round_up(end + 1 - start, _STRIDE)
        window = Block(start, min(start + width, canvas.region_length))
        session.open()
        logits = (
            ask_drafter(session, self.target, canvas, window, sampler)
            .within("block")
            .computed.logits
        )
        if self.drafting.num_forwards > 1:
            logits = self._look_again(session, sampler, canvas, window, wanted)
        logits = logits[..., : self.target.num_shared_ids]
        if start == last:
            return logits[:, :longest]
        places = (first - start)[:, None] + torch.arange(longest, device=first.device)
        rows = torch.arange(len(canvas), device=first.device)[:, None]
        return logits[rows, places.clamp(max=logits.shape[1] - 1)]

    def _look_again(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        window: Block,
        wanted: Int[Tensor, " B"],
    ) -> Float[Tensor, "B W V"]:
        """Lets the sampler commit tokens to a draft and the mask predictor look again, in turn."""
        shown = session.view
        assert shown is not None
        view, rows = shown, torch.arange(len(canvas), device=wanted.device)
        logits = view.within("block").computed.logits.clone()
        # The sampler may commit and take back drafted positions only.
        ends, fixed = first_masks(canvas) + wanted, ~canvas.masked
        part = drafts = replace(canvas, ends=ends, fixed=fixed)
        state: Any = None
        for step in range(1, self.drafting.num_forwards):
            view = session.view_of(
                part, window, sampler, logits=view.computed.logits, leave_one_out=view.leave_one_out
            )
            view = replace(view, temperature=0.0)
            state = first_state(sampler, view) if step == 1 else state
            decision, state = next_step(sampler, view, state)
            part = settle(part, view, decision, sampler)
            drafts = drafts.put(part)
            unfinished = part.num_open(window).nonzero().squeeze(-1)
            if not len(unfinished):
                break
            rows, part = rows[unfinished], part.take(unfinished)
            state = take_state(state, unfinished)
            # The mask predictor sees all masks that are left, also behind the draft.
            everything = replace(part, ends=canvas.ends[rows])
            view = ask_drafter(session, self.target, everything, window, sampler)
            seen = view.within("block").computed.logits
            if self.drafting.keeps_alternatives:
                # A position that is decided by now keeps the logits that decided it.
                is_open = part.masked[:, window.start : window.end, None]
                seen = torch.where(is_open, seen, logits[rows])
            logits[rows] = seen
        session.view = shown
        if self.drafting.keeps_alternatives:
            return logits
        tokens = drafts.tokens[:, canvas.columns(window)]
        return certain_where(logits, tokens != canvas.mask_id, tokens)


def _num_drafted(
    canvas: Canvas, logits: Float[Tensor, "B K V"], wanted: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Counts the likeliest tokens before the first EOS among them."""
    return torch.minimum(leading(~canvas.is_eos(most_likely(logits))), wanted)

"""Verification by an autoregressive model (DiffuSpec): it writes, the mask predictor drafts."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.passes import Branches
from dllm_decode.core.requests import Request
from dllm_decode.core.sending import send
from dllm_decode.core.sizes import COLUMN_STRIDE, round_up
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.settle import with_decision
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from dllm_decode.engine.views import view_of
from dllm_decode.models.targets.causal import CausalTarget, Past
from dllm_decode.verify.acceptance import Verdict, accept
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafting.draft_length import DraftLength, DraftLengths
from dllm_decode.verify.drafting.path_search import PathSearch
from dllm_decode.verify.drafts import Draft, DraftStart
from dllm_decode.verify.target_verifier import (
    TargetVerifier,
    ask_drafter,
    ask_target,
    decision_of,
)
from samplers.calls import first_state, next_step
from samplers.logits.statistics import certain_where, most_likely, num_leading
from samplers.state import merge_state
from samplers.view import View


class TargetState(NamedTuple):
    """The target's keys and values, the lengths of the next drafts, and the drafting's memory.

    Attributes:
        past: The target's keys and values.
        lengths: Lengths of the next drafts.
        memory: As in `DraftStart`.
    """

    past: Past
    lengths: DraftLengths
    memory: Int[Tensor, "B ..."]


@dataclass(frozen=True)
class ARVerify(TargetVerifier):
    """Decodes as a causal target would alone, several tokens for each of its forwards.

    One round has three parts. The mask predictor looks at the canvas. `drafting` turns its logits
    into a draft: a path of tokens or a tree of paths. The target reads the draft in one forward,
    accepts tokens from left to right up to the first one that it rejects, and adds one token of its
    own: in place of the rejected one, or after a draft that is accepted whole.

    A token of a searched draft (`PathSearch`, `Tree`) is accepted if the target would write it: its
    most likely token at temperature 0, else a draw from its distribution with noise keyed by seed,
    request and position. The answer is therefore that of the target alone for any draft, above
    temperature 0 even the same sample, except that reading many tokens at once may round
    differently (in bfloat16 23 of 24 texts were the target's, in float32 24 of 24). A drawn draft
    (`Sampled`) is accepted by the ratio of both models' probabilities: the answer follows the
    target's distribution too, but which answer a seed gives depends on the drafts. These may depend
    on the other rows on a block-causal model or with `SuffixWindow`, because the longest draft then
    decides how many columns the mask predictor sees.

    There is no drawn tree, because no rule accepts more often than a tree of chosen tokens, see
    `accept_tree`.

    The answer ends with one of the target's EOS tokens and is written from left to right; blocks do
    not matter. Only a drafting with several forwards asks the sampler. A drafting without
    forwards (`Pool`, `Recycling`) does not run the mask predictor, which then need not be
    loaded: `load_model(..., family="causal")` replaces it, see `CausalOnly`. `LinearSpec` runs the
    weights of the target in place of the mask predictor. The target reads each token once; keys and
    values of rejected tokens are dropped. The mask predictor may have any cache, because drafts may
    be approximate. A draft counts as a block: `FreeCache()` saves the columns before it in each
    forward, `PrefixCache()` and `DualCache()` save columns in its second forward and later.

    Source: Li et al. 2025, "DiffuSpec: Unlocking Diffusion Language Models for Speculative
    Decoding", https://arxiv.org/abs/2510.02358.
    Differs: Rows at their own pace. The mask predictor sees the whole rest of the answer, not the
    draft's part alone. At temperatures above 0, the paper accepts a searched token with probability
    min(1, p/q), which is only right for tokens drawn from q and favours tokens of the search.

    Attributes:
        target: Writes the answer.
        draft_length: How many positions a draft may reach.
        drafting: How drafts are made: `PathSearch()`, `Tree()`, `Sampled()`, `Pool()`,
            `Recycling()` or `LinearSpec(drafter)`.

    Raises:
        ValueError: If an attribute is none of these.
    """

    target: CausalTarget
    draft_length: DraftLength = field(default_factory=DraftLength)
    drafting: Drafting = field(default_factory=PathSearch)

    def check_request(self, decoder: Decoder, request: Request) -> None:
        super().check_request(decoder, request)
        if self.drafting.is_drawn and request.config.temperature != decoder.config.temperature:
            raise ValueError(
                f"All requests must have the decode's temperature with {self.drafting!r}, "
                f"{decoder.config.temperature}, got {request.config.temperature}."
            )

    def eos_ids(self, model: MaskPredictor) -> tuple[int, ...]:
        return self.target.eos_ids

    @property
    def asks_sampler(self) -> bool:
        return self.drafting.num_forwards > 1

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        start = DraftStart.of(state)
        num_left = state.canvas.unsettled.sum(-1)
        held = self._target_state(state, start)
        start = start._replace(memory=held.memory, past=held.past)
        # The draft of each row.
        max_lengths = torch.minimum(held.lengths.length, num_left)
        state, seen, logits = self._drafter_look(decoder, state, max_lengths)
        draft = self.drafting.draft(start, logits, max_lengths)
        state = _count_forwards(state, draft)
        # The target's verdict on it.
        state, target_forward = ask_target(decoder, state, self.target, start, draft, held.past)
        verdict = accept(start, draft, target_forward.logits)
        state = state.with_drafts(drafted=draft.counts, accepted=verdict.accepted)
        # The tokens that are written, and what later rounds need of this one.
        num_written = _num_written(state.canvas, verdict, num_left)
        num_before_eos = draft.counts
        if self.drafting.num_forwards:
            num_before_eos = num_leading(~state.canvas.is_eos(most_likely(logits)))
        num_before_eos = torch.minimum(num_before_eos, max_lengths)
        lengths = self.draft_length.after(held.lengths, num_before_eos, verdict.accepted)
        memory = self.drafting.memory_after(start, draft, target_forward.logits, verdict)
        past = target_forward.past(num_written, verdict.places)
        state = state._replace(verifier_state=TargetState(past, lengths, memory))
        if decoder.return_logprobs or not self.drafting.num_forwards:
            view = _with_target_logits(seen.view, target_forward.logits, verdict.places)
            seen = seen._replace(view=view)
        decision = decision_of(seen.window, verdict.tokens, num_written)
        return state, seen._replace(decision=decision)

    def _target_state(self, state: State, start: DraftStart) -> TargetState:
        """Returns the target's state; all but the past begins anew in new rows."""
        held: TargetState | None = state.verifier_state
        is_new = [row.target_nfe == 0 for row in state.rows]
        if held is not None and not any(is_new):
            return held
        lengths = self.draft_length.first(state.noise_keys)
        memory = self.drafting.first_memory(start, self.target.num_shared_ids)
        if held is None:
            return TargetState(self.target.start(len(state.rows)), lengths, memory)
        joined = send(is_new, state.device)
        lengths = merge_state(held.lengths, lengths, joined)
        return held._replace(lengths=lengths, memory=merge_state(held.memory, memory, joined))

    def _drafter_look(
        self, decoder: Decoder, state: State, max_lengths: Int[Tensor, " B"]
    ) -> tuple[State, Look, Float[Tensor, "B K V"]]:
        """Returns the mask predictor's first look, and the logits of its last look to draft from.

        The logits are those of as many positions as the longest draft has.
        """
        longest = int(max_lengths.max())
        # One position more than drafted, for the target's own token, which observers see too.
        # Few widths, because libraries keep scratch memory for each.
        width = round_up(longest + 1, COLUMN_STRIDE)
        if not self.drafting.num_forwards:
            window = Window.of([row.first_unsettled for row in state.rows], width, state.canvas)
            size = (len(max_lengths), width, decoder.model.vocab_size)
            nothing = torch.zeros(size, device=max_lengths.device)
            seen = Look(view_of(decoder, state, window, nothing), window)
            return state, seen, nothing[:, :longest, :0]
        state, window, logits = ask_drafter(decoder, state, self.target, width)
        seen = Look(view_of(decoder, state, window, logits), window)
        if self.drafting.num_forwards > 1:
            state, logits = self._look_again(decoder, state, seen, max_lengths)
        return state, seen, logits[:, :longest, : self.target.num_shared_ids]

    def _look_again(
        self, decoder: Decoder, state: State, seen: Look, max_lengths: Int[Tensor, " B"]
    ) -> tuple[State, Float[Tensor, "B W V"]]:
        """Lets the sampler commit tokens to a draft and the mask predictor look again, in turn."""
        window = seen.window
        logits = seen.view.summary.logits.clone()
        whole = state.canvas
        lengths = max_lengths.tolist()
        canvas = _draft_canvas(whole, window, max_lengths)
        state = state._replace(canvas=canvas)
        sampler_state: Any = None
        for _ in range(1, self.drafting.num_forwards):
            drafted = state._replace(canvas=canvas)
            canvas, sampler_state = _canvas_after_sampler(
                decoder, drafted, window, logits, sampler_state
            )
            rows = canvas.unsettled.any(-1).nonzero().squeeze(-1).tolist()
            if not rows:
                break
            drafts = Branches(canvas.tokens[rows], tuple(rows), (0,) * len(rows))
            # Only a row's own draft counts as its block, so that no row depends on its batch.
            state, _, new_logits = ask_drafter(
                decoder, state, self.target, window.width, drafts=drafts, lengths=lengths
            )
            if self.drafting.keeps_alternatives:
                # A position with a token keeps the logits from which the token was committed.
                is_unsettled = window.part(canvas.unsettled)[rows, :, None]
                new_logits = torch.where(is_unsettled, new_logits, logits[rows])
            logits[rows] = new_logits
        if not self.drafting.keeps_alternatives:
            tokens = window.part(canvas.tokens)
            logits = certain_where(logits, tokens != canvas.mask_id, tokens)
        return state._replace(canvas=whole), logits


def _num_written(
    canvas: Canvas, verdict: Verdict, num_left: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Returns how many tokens each row gets, at most up to an EOS.

    One token of the target follows the accepted ones: a correction, or the bonus token.
    """
    num_written = torch.minimum(verdict.accepted + 1, num_left)
    return torch.minimum(num_written, num_leading(~canvas.is_eos(verdict.tokens)) + 1)


def _draft_canvas(canvas: Canvas, window: Window, max_lengths: Int[Tensor, " B"]) -> Canvas:
    """Returns a canvas in which no column is unsettled but the window's first `max_lengths`."""
    offsets = torch.arange(window.width, device=max_lengths.device)
    nowhere = torch.zeros_like(canvas.unsettled)
    drafted = window.put(nowhere, offsets < max_lengths[:, None], True)
    return replace(canvas, unsettled=canvas.unsettled & drafted)


def _canvas_after_sampler(
    decoder: Decoder,
    state: State,
    window: Window,
    logits: Float[Tensor, "B W V"],
    sampler_state: Any,
) -> tuple[Canvas, Any]:
    """Returns the canvas after a step of the sampler at temperature 0, and the sampler's state.

    Args:
        decoder: The decoder, with the sampler.
        state: The rows, with their drafts as the canvas.
        window: The columns of the logits.
        logits: Logits of the window.
        sampler_state: State of the sampler; `None`: the sampler begins.
    """
    view = replace(view_of(decoder, state, window, logits), temperature=0.0)
    if sampler_state is None:
        sampler_state = first_state(decoder.sampler, view)
    decision, sampler_state = next_step(decoder.sampler, view, sampler_state)
    return with_decision(decoder, state, window, view, decision).canvas, sampler_state


def _count_forwards(state: State, draft: Draft) -> State:
    """Counts the forwards that the drafting itself ran."""
    if draft.own_forwards is None:
        return state
    numbers = draft.own_forwards.tolist()
    rows = tuple(
        row._replace(
            nfe=row.nfe + number, query_positions=row.query_positions + number * draft.forward_width
        )
        for row, number in zip(state.rows, numbers, strict=True)
    )
    cost = state.cost._replace(forwards=state.cost.forwards + max(numbers))
    return state._replace(rows=rows, cost=cost)


def _with_target_logits(
    view: View, logits: Float[Tensor, "B K V"], places: Int[Tensor, "B D"] | None
) -> View:
    """Returns a view with the target's logits after the committed text and each accepted token.

    Args:
        view: A view that begins with the first unsettled position.
        logits: Logits of the target after the committed text, then after each token of the draft.
        places: As in `Verdict`.
    """
    if places is not None:
        # A tree without nodes has no place to be accepted.
        after = torch.cat([torch.zeros_like(places[:, :1]), places + 1], 1)
        after = after.clamp(max=logits.shape[1] - 1)
        logits = logits[torch.arange(len(logits), device=logits.device)[:, None], after]
    new_logits = view.logits.clone()
    new_logits[:, : logits.shape[1]] = -torch.inf
    new_logits[:, : logits.shape[1], : logits.shape[2]] = logits[:, : new_logits.shape[1]]
    return view.with_logits(new_logits)

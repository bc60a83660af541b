"""Self-speculation (S2D2): a block-causal model verifies its own draft from left to right."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.columns import Columns
from dllm_decode.core.model import ForwardInputs, MaskPredictor
from dllm_decode.core.passes import Branches, Edit, Pass, keep_inputs
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.decide import decide
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.look import look
from dllm_decode.engine.settle import note_sampler_breaches
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from dllm_decode.verify.acceptance import Verdict, accept_by_ratio_without_bonus, tempered_log_probs
from dllm_decode.verify.drafts import Draft
from dllm_decode.verify.s2d2_routing import Router, ScoreThreshold
from samplers.base import Decision, Sampler
from samplers.facts import Fact
from samplers.logits.noise import position_keys
from samplers.view import View

AttendToText = Literal["blocks", "causal"]


class _ToVerify(NamedTuple):
    """Proposals to verify.

    Attributes:
        span: The positions to verify of each row.
        tokens: Canvases with the proposals of all rows.
        rows: The rows that verify.
        longest: The most positions to verify of a row.
        causal_until: A column of each row; columns before it see only columns up to themselves.
            Empty: as the model attends.
    """

    span: Bool[Tensor, "B W"]
    tokens: Int[Tensor, "B L"]
    rows: Sequence[int]
    longest: int
    causal_until: Sequence[int]


class _Verified(NamedTuple):
    """Verified tokens within the sampler's window, of some rows or of all.

    Attributes:
        commit: Positions that get a token.
        tokens: The tokens there; arbitrary elsewhere.
        accepted: Drafted tokens that were accepted.
        logits: Logits of the window, with those of p at verified tokens; `None` unless
            commits are recorded.
    """

    commit: Bool[Tensor, "B W"]
    tokens: Int[Tensor, "B W"]
    accepted: Int[Tensor, " B"]
    logits: Float[Tensor, "B W V"] | None = None


@dataclass(frozen=True)
class S2D2(Verifier):
    """Lets a block-causal model check its proposals as if it wrote one token after another.

    A round drafts with the sampler's own forward: each mask of the block has a proposal, drawn from
    q. If the router says so, a second forward verifies the proposals of the first run of masks. It
    computes, for each of these positions, the distribution p that the model has if it sees the
    block only up to there. From the left, a proposal is accepted with probability min(1, p / q);
    the first one rejected is replaced by a draw from max(0, p - q), normalised, and ends the round.
    Rows that do not verify take the sampler's step. In rows that do, only the edits and re-masks of
    the sampler's step are taken; the sampler's state goes on.

    Not lossless with respect to the sampler alone. At a temperature above 0, a verified run of
    masks follows the distribution of the left-to-right mode of the same weights, given the tokens
    before the run. At temperature 0, q and p are those of temperature 1 while proposals are the
    likeliest tokens, so that the distribution is neither mode's, and answers are random.

        draft     a  b  c  d     sees the draft up to itself
        masks     _  _  _  _     mask i sees the draft before i and itself: p at i

    On a model whose logits predict the next column, the first line alone gives p.

    Source: "S2D2: Fast Decoding for Block-Diffusion LLMs via Training-Free Self-Speculation", 2026,
    https://arxiv.org/abs/2603.25702; the rule is that of the authors' code,
    github.com/phymhan/S2D2 at 279500a.
    Differs: Any sampler, and batches. The authors' rows that do not verify commit confidences above
    a threshold, as `ConfidenceThreshold` does or, on LLaDA 2.1, `JointThreshold`. Fast-dLLM v2 is
    drafted in whole blocks, by the authors in sub-blocks. Not offered: the router that is a bandit,
    the sampler's step in addition to few verified tokens, acceptance above a fixed ratio, tempered
    ratios, top-p and top-k. Noise is keyed by seed, request and position.

    Attributes:
        router: Decides which rows verify: `ScoreThreshold()` or `MinimumSpan()`.
        attend_to_text: How columns before the first unsettled one see each other, in every forward.
            "blocks": as the model was trained. "causal": each sees the columns up to itself, as in
            the left-to-right mode; the authors' AR-like caching, published for SDAR.

    Raises:
        ValueError: If an attribute is none of these.
    """

    router: Router = field(default_factory=ScoreThreshold)
    attend_to_text: AttendToText = "blocks"

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.EXACT_REPLAY, Fact.WHOLE_BLOCKS})

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.ONE_STEP_A_FORWARD})

    def check(self, model: MaskPredictor) -> None:
        if not model.causal_block_length:
            raise ValueError(
                "S2D2 needs a block-causal model, which reads finished blocks without later ones, "
                f"got {model.name}, which attends in both directions. Use SelfVerify(), or a model "
                "such as SDAR."
            )

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        # A step that verifies fills at least one mask.
        return num_masks + sampler.max_steps(num_masks)

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        causal_until: list[int] = []
        if self.attend_to_text == "causal":
            causal_until = [row.first_unsettled for row in state.rows]
        state, seen = look(decoder, state, edit=_causal_edit(causal_until))
        span = _first_run(seen.view.eligible & seen.view.masked)
        router_state = state.verifier_state
        if router_state is None:
            router_state = self.router.init(seen.view)
        chosen, router_state = self.router.verifies(seen.view, span, router_state)
        state = state._replace(verifier_state=router_state)
        # A full block has nothing to verify.
        chosen = chosen & span.any(-1)
        counts = span.sum(-1) * chosen
        # The host waits to learn which rows take part in the second forward.
        lengths = counts.tolist()
        rows = [row for row, length in enumerate(lengths) if length]
        if not rows:
            return state, seen
        state, seen, decision = decide(decoder, state, seen)
        state = note_sampler_breaches(decoder, state, seen, decision)
        canvases = _canvases_with_proposals(state, seen, decision)
        to_verify = _ToVerify(span, canvases, rows, max(lengths), causal_until)
        state, verified = _verify(decoder, state, seen, to_verify)
        state = state.with_drafts(drafted=counts, accepted=verified.accepted)
        decision = _with_verified(seen.view, decision, verified, chosen)
        if verified.logits is not None:
            seen = seen._replace(view=seen.view.with_logits(verified.logits))
        return state, seen._replace(decision=decision)


def _first_run(masks: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Returns the first run of True in each row."""
    has_begun = masks.cumsum(-1) > 0
    return masks & ((has_begun & ~masks).cumsum(-1) == 0)


def _canvases_with_proposals(state: State, seen: Look, decision: Decision) -> Int[Tensor, "B L"]:
    """Returns canvases in which masks hold their proposals, and edited tokens are replaced."""
    view, tokens = seen.view, state.canvas.tokens
    if decision.tokens is not None:
        edits = decision.commit & ~view.masked
        tokens = seen.window.put(tokens, edits, decision.tokens)
    return seen.window.put(tokens, view.eligible & view.masked, view.proposal)


def _verify(
    decoder: Decoder, state: State, seen: Look, to_verify: _ToVerify
) -> tuple[State, _Verified]:
    """Runs the second forward for some rows and accepts their proposals from the left."""
    index = send(to_verify.rows, state.device)
    view = seen.view.take(index)
    run = to_verify.span[index]
    first = run.long().argmax(-1, keepdim=True)
    width = run.shape[1]
    ahead = torch.arange(to_verify.longest, device=state.device)
    offsets = (first + ahead).clamp(max=width - 1)
    state, logits = _left_to_right_logits(decoder, state, seen.window, to_verify, offsets)
    verdict = _verdict(view, offsets, run.sum(-1), logits, state.noise_keys[index])
    # How many places after the first one of its run each column is.
    order = torch.arange(width, device=state.device) - first
    commit = run & (order <= verdict.accepted[:, None])
    order = order.clamp(0, to_verify.longest - 1)
    verified = _Verified(commit, verdict.tokens.gather(1, order), verdict.accepted)
    if decoder.return_logprobs:
        rows = torch.arange(len(order), device=state.device)[:, None]
        shown_logits = torch.where(commit[..., None], logits[rows, order], view.logits)
        verified = verified._replace(logits=shown_logits)
    return state, _in_all_rows(verified, seen.view, index)


def _verdict(
    view: View,
    offsets: Int[Tensor, "N S"],
    counts: Int[Tensor, " N"],
    logits: Float[Tensor, "N S V"],
    noise_keys: Int[Tensor, " N"],
) -> Verdict:
    """Accepts proposals from the left: those at the first `counts` offsets.

    Args:
        view: The view in which q drafted.
        offsets: Those of the proposals in the view.
        counts: Proposals of each row.
        logits: Logits of p at these offsets.
        noise_keys: Noise keys of the rows.
    """
    rows = torch.arange(len(offsets), device=offsets.device)[:, None]
    q, p = tempered_log_probs(view, view.logits[rows, offsets]), tempered_log_probs(view, logits)
    draft = Draft(view.proposal.gather(1, offsets), counts, q)
    positions = view.positions.gather(1, offsets)
    keys = position_keys(noise_keys, torch.zeros_like(counts), positions)
    return accept_by_ratio_without_bonus(draft, p, keys)


def _in_all_rows(verified: _Verified, view: View, index: Int[Tensor, " N"]) -> _Verified:
    """Returns the verified tokens of some rows among all rows of the view."""
    nothing = torch.zeros_like(view.tokens)
    logits = verified.logits
    return _Verified(
        torch.zeros_like(view.masked).index_copy(0, index, verified.commit),
        nothing.index_copy(0, index, verified.tokens),
        nothing[:, 0].index_copy(0, index, verified.accepted),
        None if logits is None else view.logits.index_copy(0, index, logits),
    )


def _left_to_right_logits(
    decoder: Decoder,
    state: State,
    window: Window,
    to_verify: _ToVerify,
    offsets: Int[Tensor, "N S"],
) -> tuple[State, Float[Tensor, "N S V"]]:
    """Returns logits at offsets in the window, each given the draft up to there."""
    rows, shift = to_verify.rows, decoder.sight.shift
    index = send(rows, state.device)
    canvases = [to_verify.tokens[index]]
    if not shift:
        # A column that predicts itself must not hold its own draft.
        canvases.append(state.canvas.tokens[index])
    num_branches = len(canvases)
    blocks = [row.opening.block for row in state.rows]
    branches = Branches(
        torch.cat(canvases),
        (*rows,) * num_branches,
        tuple(number for number in range(num_branches) for _ in rows),
        in_columns=True,
        causal_from=tuple(blocks[row][0] for row in rows) * num_branches,
    )
    columns: list[Columns] = []
    if decoder.sight.with_kv_cache:
        columns = [(range(max(0, start - shift), stop),) for start, stop in blocks]
    causal_until = to_verify.causal_until
    edit = _causal_edit(causal_until and [causal_until[row] for row in branches.rows])
    pass_ = Pass(window, offsets.repeat(num_branches, 1), branches, columns=columns, edit=edit)
    state, logits = forward(decoder, state, pass_)
    return state, logits[-len(rows) :]


def _causal_edit(until: Sequence[int]) -> Edit:
    """Returns an edit: columns before `until` of their row see only columns up to themselves."""
    if not any(until):
        return keep_inputs

    def edit(inputs: ForwardInputs, members: tuple[int, ...]) -> ForwardInputs:
        columns, cache = inputs.positions, inputs.kv_cache
        keys = torch.arange(
            inputs.tokens.shape[1] if cache is None else cache.num_slots, device=columns.device
        )
        limits = send([until[member] for member in members], columns.device)
        attend = (columns >= limits[:, None])[..., None] | (keys <= columns[..., None])
        return inputs.attending_within(attend)

    return edit


def _with_verified(
    view: View, decision: Decision, verified: _Verified, chosen: Bool[Tensor, " B"]
) -> Decision:
    """Returns the sampler's decision, with the verified tokens in rows that verify."""
    is_taken = ~view.masked | ~chosen[:, None]
    proposed = view.proposal if decision.tokens is None else decision.tokens
    # An editing sampler settles a block as a whole, once it has seen the block full.
    settle = None if decision.settle is None else decision.settle & ~chosen[:, None]
    return Decision(
        commit=verified.commit | decision.commit & is_taken,
        tokens=torch.where(verified.commit, verified.tokens, proposed),
        settle=settle,
        remask=decision.remask,
    )

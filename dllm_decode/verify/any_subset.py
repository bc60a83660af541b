"""Any-subset speculative decoding (ASSD): one model drafts several tokens and judges them."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Branches, Edit, Pass
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from dllm_decode.engine.views import view_of
from dllm_decode.verify.acceptance import accept_by_ratio_without_bonus, tempered_log_probs
from dllm_decode.verify.drafts import Draft
from samplers.base import Decision, Sampler
from samplers.checks import count_from
from samplers.facts import Fact
from samplers.logits.noise import position_keys
from samplers.logits.statistics import certain_where, most_likely
from samplers.view import View


@dataclass(frozen=True)
class AnySubsetVerify(Verifier):
    """Decodes as an any-subset model would one token after another, in no more forwards.

    The prompt and all given tokens are read both ways. The other tokens of the answer are written
    in ascending order, each from the given tokens and the tokens written before it. A round has two
    forwards of the same model. The first drafts the next `draft_tokens` unsettled positions, each
    without the others: x is drawn from q. The second has all drafts in place, and judges each by
    the distribution p that it has after the drafts before it. From the left, x is accepted with
    probability min(1, p / q); the first rejected token is replaced by a draw from max(0, p - q),
    normalised, and ends the round. For the first draft p equals q, so that this draft is always
    accepted, and a round of one draft needs no second forward. Hence a round has at most as many
    forwards as it writes tokens, including tokens after an EOS.

        given     _ given  _  _  given       ranks  0 1 0 2 3 0
        draft       a      b  c              each sees rank 0 and what is settled
        judge       a      b  c              b sees a as well, c sees a and b

    The answer follows exactly the distribution of one token a forward, which is
    `AnySubsetVerify(1)`; at temperature 0 it is that answer. With 2 no forward is saved: an answer
    of n tokens up to its EOS takes n forwards if n is even, else n + 1. Blocks do not matter, and
    the sampler is not asked.

    Source: Guo and Ermon 2025, "Reviving Any-Subset Autoregressive Models with Principled Parallel
    Sampling and Speculative Decoding", https://arxiv.org/abs/2504.20456; the rule is that of the
    authors' code at 83a444d.
    Differs: [MASK] and banned tokens are excluded before the softmax, by the authors afterwards
    without normalising, which changes the distribution. Temperature 0, and a single draft without a
    second forward, which the authors' code does not have. Batches, whose rows keep their own pace.
    Left out, see docs/literature.md: the drafter from bigrams of the text, orders other than
    ascending, `r_atol`, `no_temp_oracle`.

    Attributes:
        draft_tokens: Positions drafted in a round, at least 1.

    Raises:
        ValueError: If the attribute is outside its range.
    """

    draft_tokens: Annotated[int, count_from(1, "tokens")] = 5

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.ANY_SUBSET, Fact.SEES_BOTH_WAYS, Fact.EVERY_COLUMN})

    @property
    def asks_sampler(self) -> bool:
        return False

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        to_draft = _to_draft(state, self.draft_tokens)
        window, offsets = to_draft.window, to_draft.offsets
        pass_ = Pass(window, offsets, edit=_left_to_right_edit(state.canvas.given))
        state, q = forward(decoder, state, pass_)
        view = view_of(decoder, state, window, q, offsets=offsets)
        draft = Draft(view.proposal.gather(1, offsets), to_draft.counts, _exact_log_probs(view, q))
        state, p = _judge(decoder, state, to_draft, view, q)
        view = view_of(decoder, state, window, p, offsets=offsets)
        positions = view.positions.gather(1, offsets)
        keys = position_keys(state.noise_keys, torch.zeros_like(to_draft.counts), positions)
        verdict = accept_by_ratio_without_bonus(draft, _exact_log_probs(view, p), keys)
        state = state.with_drafts(drafted=to_draft.counts, accepted=verdict.accepted)
        order = (to_draft.drafted.cumsum(-1) - 1).clamp(min=0)
        decision = Decision(
            commit=to_draft.drafted & (order <= verdict.accepted[:, None]),
            tokens=verdict.tokens.gather(1, order),
        )
        return state, Look(view, window, decision=decision)


class _ToDraft(NamedTuple):
    """The positions to draft.

    Attributes:
        window: The columns from each row's first unsettled one to the last one to draft.
        drafted: Columns of the window to draft.
        offsets: Those of these columns, ascending; rows with fewer are filled with other offsets.
        counts: Positions to draft in each row.
        rows: Rows with more than one position to draft.
    """

    window: Window
    drafted: Bool[Tensor, "B W"]
    offsets: Int[Tensor, "B K"]
    counts: Int[Tensor, " B"]
    rows: tuple[int, ...]


def _to_draft(state: State, num_tokens: int) -> _ToDraft:
    """Returns each row's next unsettled positions; waits for the device once."""
    canvas = state.canvas
    starts = [row.first_unsettled for row in state.rows]
    drafted = canvas.unsettled & (canvas.unsettled.cumsum(-1) <= num_tokens)
    columns = torch.arange(1, canvas.width + 1, device=state.device)
    counts = drafted.sum(-1)
    ends, row_counts = torch.stack([(drafted * columns).amax(-1), counts]).tolist()
    width = max(end - start for end, start in zip(ends, starts, strict=True))
    window = Window.of(starts, width, canvas)
    # A window may end after the canvas, whose last column is then repeated.
    drafted = window.part(drafted)
    drafted = drafted & (drafted.cumsum(-1) <= counts[:, None])
    order = drafted.sort(dim=-1, descending=True, stable=True).indices
    rows = tuple(row for row, count in enumerate(row_counts) if count > 1)
    return _ToDraft(window, drafted, order[:, : max(row_counts)], counts, rows)


def _judge(
    decoder: Decoder, state: State, to_draft: _ToDraft, view: View, q: Float[Tensor, "B K V"]
) -> tuple[State, Float[Tensor, "B K V"]]:
    """Returns the logits of each draft after the drafts before it; for the first draft, q's."""
    window, canvas, rows = to_draft.window, state.canvas, to_draft.rows
    if not rows:
        return state, q
    index = send(rows, state.device)
    tokens = window.put(canvas.tokens, to_draft.drafted, view.proposal)
    branches = Branches(tokens[index], rows, (0,) * len(rows))
    edit = _left_to_right_edit(canvas.given[index])
    pass_ = Pass(window, to_draft.offsets[index, 1:], branches, edit=edit)
    state, judged = forward(decoder, state, pass_)
    p = q.clone()
    p[index, 1:] = judged
    return state, p


def _exact_log_probs(view: View, logits: Float[Tensor, "B K V"]) -> Float[Tensor, "B K V"]:
    """Returns log-probabilities at the rows' temperature; greedy rows are certain of a token."""
    is_greedy = torch.as_tensor(view.temperature, device=logits.device) == 0.0
    is_greedy = is_greedy.view(-1, 1).expand(logits.shape[:2])
    return certain_where(tempered_log_probs(view, logits), is_greedy, most_likely(logits))


def _left_to_right_edit(given: Bool[Tensor, "N L"]) -> Edit:
    """Returns an edit: given columns see only given columns; others also all columns before them.

    A given column does so even after other columns are settled.
    """

    def edit(inputs: ForwardInputs, members: tuple[int, ...]) -> ForwardInputs:
        columns = inputs.positions
        is_given = given[list(members), : columns.shape[1]]
        before = columns[:, None] < columns[..., None]
        attend = is_given[:, None] | (before & ~is_given[..., None])
        return inputs.attending_within(attend)

    return edit

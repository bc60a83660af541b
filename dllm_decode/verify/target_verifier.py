"""Verifiers with a causal target, and one forward of it: it reads a draft, and predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.core.requests import Request
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward, ids_on_device, note_not_finite
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Verifier
from dllm_decode.models.targets.causal import CausalTarget, Past, Reading
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.base import Decision, Sampler


class TargetForward(NamedTuple):
    """The result of one forward of a target over drafts.

    Attributes:
        logits: Logits after the committed text, then after each token of the longest draft.
        reading: Keys and values of the forward, for `past`.
        num_unread: Number of committed tokens that the target had not read before this forward.
    """

    logits: Float[Tensor, "B N V"]
    reading: Reading
    num_unread: Int[Tensor, " B"]

    def past(
        self, num_committed: Int[Tensor, " B"], places: Int[Tensor, "B D"] | None = None
    ) -> Past:
        """Returns the past once the round's tokens are committed: all tokens but the last.

        Args:
            num_committed: Tokens that the round commits, the target's own last one included.
            places: As in `Verdict`.
        """
        num_kept = self.num_unread + num_committed - 1
        if places is None:
            return self.reading.keep(num_kept)
        num_unread = self.num_unread[:, None]
        columns = torch.arange(int(self.num_unread.max()) + places.shape[1], device=places.device)
        depths = (columns - num_unread).clamp(0, places.shape[1] - 1)
        accepted = num_unread + places.gather(1, depths)
        return self.reading.keep(num_kept, torch.where(columns < num_unread, columns, accepted))


def require_target(verifier: str, target: object) -> None:
    """Raises ValueError unless `target` is a loaded target."""
    if not isinstance(target, CausalTarget):
        raise ValueError(
            f"The target of {verifier} must be loaded, such as load_target('mini-ar', tokenizer), "
            f"got {target!r}."
        )


class TargetVerifier(Verifier):
    """A verifier whose target, a causal model, reads the answer from left to right.

    Attributes:
        target: The causal model.
    """

    target: CausalTarget

    def __post_init__(self) -> None:
        super().__post_init__()
        require_target(type(self).__name__, self.target)

    @property
    def files(self) -> tuple[Path, ...]:
        return self.target.files

    @property
    def asks_sampler(self) -> bool:
        return False

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        return num_masks

    def check(self, model: MaskPredictor) -> None:
        """Raises ValueError if an id may mean different tokens to target and mask predictor."""
        target, name = self.target, type(self).__name__
        if not target.is_compared and target.vocab_size != model.vocab_size:
            raise ValueError(
                f"The target of {name} must have the ids of {model.name}, "
                f"{model.vocab_size} of them, got {target.name} with {target.vocab_size}. "
                "Load it with load_target, which compares the tokenizers."
            )
        if target.num_shared_ids > model.vocab_size:
            raise ValueError(
                f"Every token of the target of {name} must be known to {model.name}, which knows "
                f"{model.vocab_size}, got {target.name} with {target.num_shared_ids}. "
                "Use a target with the same tokenizer."
            )

    def check_request(self, decoder: Decoder, request: Request) -> None:
        """Raises ValueError if the target cannot read the request, or answer from left to right."""
        mask_id, target, name = decoder.model.mask_id, self.target, type(self).__name__
        if any(token != mask_id for token in request.template[request.first_blank(mask_id) :]):
            raise ValueError(
                f"A template must give the beginning of an answer, since {name} writes from left "
                "to right, got one with given tokens after [MASK]. Use another verifier."
            )
        token_ids = [token for token in (*request.prompt, *request.template) if token != mask_id]
        if max(token_ids) >= target.num_shared_ids:
            raise ValueError(
                f"Prompts of {name} must consist of ids that {target.name} can read, below "
                f"{target.num_shared_ids}, got {max(token_ids)} in a prompt or template. "
                "Leave out tokens that only the mask predictor knows."
            )


def ask_drafter(
    decoder: Decoder,
    state: State,
    target: CausalTarget,
    width: int,
    *,
    drafts: Branches | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[State, Window, Float[Tensor, "N W V"]]:
    """Runs one forward of the mask predictor from each row's first unsettled position on.

    Args:
        decoder: The decoder, with the mask predictor.
        state: The rows.
        target: The target; tokens that it does not know get logits of -inf.
        width: Columns to predict, W.
        drafts: Canvases of some rows to look at; `None`: the canvas of the state.
        lengths: Columns of each row that count as its open block; `None`: `width`.
    """
    window = Window.of([row.first_unsettled for row in state.rows], width, state.canvas)
    # Caches begin anew with the first look of each draft, because the target may have written any
    # token. Later looks continue it.
    period_forwards = 0 if drafts is None else 1
    lengths = [width] * len(state.rows) if lengths is None else lengths
    rows = [
        row.with_block(row.first_unsettled, min(row.first_unsettled + length, row.end))._replace(
            period_forwards=period_forwards
        )
        for row, length in zip(state.rows, lengths, strict=True)
    ]
    pass_ = Pass(window, policy_rows=rows, branches=drafts)
    state, logits = forward(decoder, state, pass_)
    logits[..., target.num_shared_ids :] = -torch.inf
    return state, window, logits


def decision_of(window: Window, tokens: Int[Tensor, "B K"], counts: Int[Tensor, " B"]) -> Decision:
    """Returns the decision to write each row's first tokens from the window's first column on."""
    tokens = tokens[:, : window.width]
    tokens = pad(tokens, (0, window.width - tokens.shape[1]))
    offsets = torch.arange(window.width, device=tokens.device)
    return Decision(commit=offsets < counts[:, None], tokens=tokens)


def ask_target(
    decoder: Decoder,
    state: State,
    target: CausalTarget,
    start: DraftStart,
    draft: Draft,
    past: Past,
) -> tuple[State, TargetForward]:
    """Lets the target read the drafts in one forward.

    The target reads only tokens that it has not read yet: in the first round the whole prompt, in
    later rounds the token that was committed last. After these tokens it reads the draft. The
    forward is counted, and banned ids have logits of -inf.

    Raises:
        RuntimeError: If a draft is not a tree.
    """
    canvas = start.canvas
    num_unread = start.first_unsettled - past.lengths
    counts = num_unread + draft.counts
    sizes = torch.stack([counts.max(), draft.counts.max(), draft.num_broken()])
    width, longest, num_broken = sizes.tolist()
    if num_broken:
        raise RuntimeError(
            "Every token of a draft must come after its parent and differ from its siblings, got "
            f"{num_broken} that do not. Mend `draft` of the verifier's drafting."
        )
    places = torch.arange(width, device=num_unread.device)
    columns = past.lengths[:, None] + places
    committed = canvas.tokens.gather(1, columns.clamp(max=canvas.width - 1))
    drafted = (places - num_unread[:, None]).clamp(0, draft.tokens.shape[1] - 1)
    drafted = draft.tokens.gather(1, drafted)
    tokens = torch.where(places < num_unread[:, None], committed, drafted)
    # The target may know neither [MASK] nor the tokens that fill up a row, nor all that is drafted.
    unknown = (tokens == canvas.mask_id) | (places >= counts[:, None])
    unknown |= tokens >= target.num_shared_ids
    tokens = tokens.masked_fill(unknown, target.eos_ids[0])
    reading = target.read(
        past, tokens, counts, num_logits=longest + 1, first_logits=num_unread - 1,
        parents=draft.shortened(longest).parents,
    )  # fmt: skip
    # Logits of ids that both models know.
    logits = reading.logits[..., : target.num_shared_ids]
    state = note_not_finite(state, logits, target.name)
    banned_ids = tuple(token for token in decoder.banned_ids if token < logits.shape[-1])
    logits = logits.index_fill_(-1, ids_on_device(banned_ids, logits.device), -torch.inf)
    cost = state.cost._replace(target_forwards=state.cost.target_forwards + 1)
    rows = tuple(row._replace(target_nfe=row.target_nfe + 1) for row in state.rows)
    return state._replace(cost=cost, rows=rows), TargetForward(logits, reading, num_unread)

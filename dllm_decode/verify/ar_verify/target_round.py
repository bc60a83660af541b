"""One round of a causal target: it reads a draft behind what it has read before, and predicts."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.models.targets.causal import CausalTarget, Past, Reading
from dllm_decode.session import Session
from dllm_decode.verify.ar_verify.drafting.base import Draft
from samplers.base import Sampler
from samplers.view import View


class TargetRound(NamedTuple):
    """What a target makes of drafts.

    Attributes:
        logits: Its prediction behind the committed text, then behind each token of the longest
            draft.
        reading: What it has read, for `past`.
        unread: Committed tokens that it had not read before.
    """

    logits: Float[Tensor, "B N V"]
    reading: Reading
    unread: Int[Tensor, " B"]

    def past(
        self, num_committed: Int[Tensor, " B"], places: Int[Tensor, "B D"] | None = None
    ) -> Past:
        """Returns the past once the round's tokens are committed: all of them but the last.

        Args:
            num_committed: Tokens that the round commits, the target's own at the end among them.
            places: Where the accepted tokens stand in the draft; `None`: from its beginning on.
        """
        num_kept = self.unread + num_committed - 1
        if places is None:
            return self.reading.keep(num_kept)
        unread = self.unread[:, None]
        columns = torch.arange(int(self.unread.max()) + places.shape[1], device=places.device)
        accepted = unread + places.gather(1, (columns - unread).clamp(0, places.shape[1] - 1))
        return self.reading.keep(num_kept, torch.where(columns < unread, columns, accepted))


def require_target(verifier: str, target: object) -> None:
    """Raises ValueError unless a verifier is given a target that is loaded."""
    if not isinstance(target, CausalTarget):
        raise ValueError(
            f"The target of {verifier} must be loaded, such as load_target('mini-ar', tokenizer), "
            f"got {target!r}."
        )


def check_target(target: CausalTarget, model: MaskPredictor, *, verifier: str) -> None:
    """Raises ValueError if target and mask predictor cannot mean the same tokens."""
    if not target.is_compared and target.vocab_size != model.vocab_size:
        raise ValueError(
            f"The target of {verifier} must have the ids of {model.name}, "
            f"{model.vocab_size} of them, got {target.name} with {target.vocab_size}. "
            "Load it with load_target, which compares the tokenizers."
        )
    if target.num_shared_ids > model.vocab_size:
        raise ValueError(
            f"Every token of the target of {verifier} must be known to {model.name}, which knows "
            f"{model.vocab_size}, got {target.name} with {target.num_shared_ids}. "
            "Use a target with the same tokenizer."
        )


def whole_answer(canvas: Canvas, target: CausalTarget, *, verifier: str) -> Iterator[Block]:
    """Returns the answer as one block.

    Raises:
        ValueError: If a token is given behind an open position, or one that the target does not
            know.
    """
    masked = canvas.masked
    behind = masked.cumsum(-1) > 0
    inside = torch.arange(canvas.region_length, device=masked.device) < canvas.ends[:, None]
    if (behind & ~masked & inside).any():
        raise ValueError(
            f"A template must give the beginning of an answer, since {verifier} writes from left "
            "to right, got one with given tokens behind open positions. Use another verifier."
        )
    columns = torch.arange(canvas.length, device=masked.device)
    is_read = (canvas.tokens != canvas.mask_id) & (columns >= canvas.pads[:, None])
    highest = int(canvas.tokens.masked_fill(~is_read, 0).max())
    if highest >= target.num_shared_ids:
        raise ValueError(
            f"Prompts of {verifier} must consist of ids that {target.name} can read, below "
            f"{target.num_shared_ids}, got {highest} in a prompt or template. "
            "Leave out tokens that only the mask predictor knows."
        )
    return canvas.blocks(canvas.region_length)


def first_masks(canvas: Canvas) -> Int[Tensor, " B"]:
    """Returns each row's first masked answer position; there is one in every row."""
    return canvas.masked.long().argmax(-1)


def context_of(canvas: Canvas, num_tokens: int) -> Int[Tensor, "B C"]:
    """Returns the last tokens before each row's first mask."""
    back = torch.arange(num_tokens, 0, -1, device=canvas.tokens.device)
    columns = canvas.start + first_masks(canvas)[:, None] - back
    return canvas.tokens.gather(1, columns.clamp(min=0))


def write(canvas: Canvas, first: Int[Tensor, " B"], draft: Draft) -> Canvas:
    """Returns the canvas with each row's draft written from its first mask on.

    What lies behind a committed EOS is filled if the canvas truncates.
    """
    positions = torch.arange(canvas.region_length, device=first.device)
    offsets = positions - first[:, None]
    where = (offsets >= 0) & (offsets < draft.counts[:, None])
    index = offsets.clamp(0, draft.tokens.shape[1] - 1)
    return canvas.write(0, where, draft.tokens.gather(1, index)).truncate_at_eos()


def ask_drafter(
    session: Session, target: CausalTarget, canvas: Canvas, window: Block, sampler: Sampler
) -> View:
    """Runs one forward of the mask predictor; what the target cannot say is impossible."""
    view = session.forward(canvas, window, sampler)
    view.computed.logits[..., target.num_shared_ids :] = -torch.inf
    return view


def ask_target(
    session: Session,
    target: CausalTarget,
    canvas: Canvas,
    draft: Draft,
    past: Past,
) -> TargetRound:
    """Lets the target read the drafts; one forward.

    Only what it has not read yet is fed: the whole prompt in the first round, then the token that
    was committed last.

    Raises:
        RuntimeError: If a draft is no tree.
    """
    unread = canvas.start + first_masks(canvas) - canvas.pads - past.lengths
    counts = unread + draft.counts
    sizes = torch.stack([counts.max(), draft.counts.max(), draft.num_broken()])
    width, longest, num_broken = sizes.tolist()
    if num_broken:
        raise RuntimeError(
            "Every token of a draft must come behind its parent and differ from its siblings, got "
            f"{num_broken} that do not. Mend `draft` of the verifier's drafting."
        )
    places = torch.arange(width, device=unread.device)
    columns = (canvas.pads + past.lengths)[:, None] + places
    committed = canvas.tokens.gather(1, columns.clamp(max=canvas.length - 1))
    drafted = (places - unread[:, None]).clamp(0, draft.tokens.shape[1] - 1)
    drafted = draft.tokens.gather(1, drafted)
    tokens = torch.where(places < unread[:, None], committed, drafted)
    # The target may not know [MASK].
    tokens = tokens.masked_fill(tokens == canvas.mask_id, target.eos_ids[0])
    reading = session.read_target(
        target,
        canvas,
        past,
        tokens,
        counts,
        num_logits=longest + 1,
        first_logits=unread - 1,
        parents=draft.first(longest).parents,
    )
    return TargetRound(reading.logits, reading, unread)

"""Observers that record a decode: `Trace` and `Gains`."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.observers import StepEvent


class Revision(NamedTuple):
    """A token that was taken back.

    Attributes:
        position: Answer position.
        token: The token that was taken back.
        committed: Step of its commit; -1: a block of a uniform-state model began with it.
        confidence: As in `Trace`.
        removed: Step in which it was re-masked or replaced.
    """

    position: int
    token: int
    committed: int
    confidence: float
    removed: int


class _OfOneDecode:
    """An observer that serves one call of `decode` or `decode_many`."""

    def __init__(self) -> None:
        self._decode_number: int | None = None

    def _check(self, event: StepEvent) -> None:
        """Raises RuntimeError if an event belongs to another decode than the first event."""
        if self._decode_number not in (None, event.decode_number):
            raise RuntimeError(
                f"{type(self).__name__} must serve one decode only, got a second. Make a new one."
            )
        self._decode_number = event.decode_number


class Trace(_OfOneDecode):
    """Records at which step each answer position was committed, and how confidently.

    Pass it in `observers`; one trace serves one call of `decode` or `decode_many`. Positions are
    those of `DecodeOutput.tokens`: from the first of the row's own answer, `gen_length` of them.

    Attributes:
        steps: By request index the step of each position's last commit, from 0; -1 for tokens
            that were given or filled in after an EOS.
        confidences: Temperature-1 probability of the token at that step; NaN where `steps` is -1.
        revisions: By request index the commits that later steps took back, in their order.
        num_steps: By request index the steps that its row has taken.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Int[Tensor, " G"]] = {}
        self.confidences: dict[int, Float[Tensor, " G"]] = {}
        self.revisions: dict[int, list[Revision]] = {}
        self.num_steps: dict[int, int] = {}
        super().__init__()

    def __call__(self, event: StepEvent) -> None:
        self._check(event)
        view, columns = event.view, event.columns
        before, after = (part.tokens.gather(1, columns) for part in (event.before, event.after))
        masked, masks_left = (
            part.masked.gather(1, columns) for part in (event.before, event.after)
        )
        # A block-causal model also fills the columns of its last block after the answer.
        changed = (before != after) & view.in_answer
        committed = ~masks_left & changed & ~event.eos_filled.gather(1, columns)
        removed = ~masked & changed
        probability = view.probability(after.clamp(max=view.vocab_size - 1))
        # Copied once for all rows, because the host waits for each copy.
        committed, removed, before = committed.cpu(), removed.cpu(), before.cpu()
        probability, positions = probability.float().cpu(), view.positions.cpu()
        for index, row in enumerate(event.rows):
            request, length = row.request.index, row.config.gen_length
            steps = self.steps.setdefault(request, torch.full((length,), -1))
            confidences = self.confidences.setdefault(request, torch.full((length,), torch.nan))
            revisions = self.revisions.setdefault(request, [])
            now = self.num_steps.get(request, 0)
            for at in removed[index].nonzero().flatten().tolist():
                position, token = int(positions[index, at]), int(before[index, at])
                confidence = float(confidences[position])
                revisions.append(Revision(position, token, int(steps[position]), confidence, now))
                steps[position], confidences[position] = -1, torch.nan
            where = committed[index].nonzero().flatten()
            steps[positions[index, where]] = now
            confidences[positions[index, where]] = probability[index, where]
            self.num_steps[request] = now + 1


class Gain(NamedTuple):
    """The tokens that a row got from its forwards.

    Attributes:
        per_forward: Tokens that each forward committed, in order; a verifier's accepted lengths.
        committed: Positions that are filled in the end.
    """

    per_forward: list[int]
    committed: int


class Gains(_OfOneDecode):
    """Records how many tokens each forward gave each row.

    The steps that a verifier takes on one forward count together. An EOS that the engine writes
    after another EOS or after a row's end is not counted. The numbers stay on the device until
    `by_row` is called. Pass it in `observers`; it serves one call of `decode` or `decode_many`.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[list[tuple[int, int]], Int[Tensor, "2 B"]]] = []
        super().__init__()

    def __call__(self, event: StepEvent) -> None:
        self._check(event)
        # Every column of an open canvas of a uniform-state model holds a token.
        is_uniform_state = event.before.mask_id >= event.view.vocab_size
        before, after = (
            canvas.unsettled if is_uniform_state else canvas.masked
            for canvas in (event.before, event.after)
        )
        written = (before & ~after & ~event.eos_filled).sum(-1)
        removed = (~before & (after | event.eos_filled)).sum(-1)
        # A row's own costs tell its forwards apart; the batch also runs forwards without the row.
        costs = [(row.request.index, row.query_positions + row.target_nfe) for row in event.rows]
        self._steps.append((costs, torch.stack([written, removed])))

    def by_row(self) -> dict[int, Gain]:
        """Returns by request index the gain of each row that took a step."""
        gains: dict[int, dict[int, int]] = {}
        removed: dict[int, int] = {}
        for costs, counts in self._steps:
            for (request, cost), (num_written, num_removed) in zip(
                costs, counts.T.tolist(), strict=True
            ):
                written = gains.setdefault(request, {})
                written[cost] = written.get(cost, 0) + num_written
                removed[request] = removed.get(request, 0) + num_removed
        return {
            request: Gain(list(written.values()), sum(written.values()) - removed[request])
            for request, written in gains.items()
        }

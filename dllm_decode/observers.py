"""Observers: what happened at which step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from samplers.view import View


@dataclass(frozen=True)
class StepEvent:
    """One step of some rows, as observers see it.

    Positions are those of the canvases: in `decode_many` of a region that begins where rows last
    joined. `lead` says where a row's own answer begins there; `answers()` gives all of it.

    Attributes:
        before: The rows that took the step.
        after: The same rows after it.
        block: The open block.
        view: What the rows were shown. A verifier that looks ahead takes several steps on one
            forward, each with a view of its own.
        decode: A number that all steps of one call of `decode` or `decode_many` have.
        requests: The index of each row's prompt, by which it is known as long as it is decoded; in
            `decode` the same as `before.rows`.
        forwards: Forwards so far in this decode, this step's included.
        query_positions: Columns computed so far for each of these rows.
        drafted: Tokens that a verifier had drafted for them so far.
        accepted: Those of them that were verified and kept.
    """

    before: Canvas
    after: Canvas
    block: Block
    view: View
    decode: int
    requests: Int[Tensor, " B"]
    forwards: int
    query_positions: Int[Tensor, " B"]
    drafted: Int[Tensor, " B"]
    accepted: Int[Tensor, " B"]


Observer: TypeAlias = Callable[[StepEvent], None]


class Revision(NamedTuple):
    """A committed token that was taken back.

    Attributes:
        position: Answer position.
        token: What stood there.
        committed: Round of its commit, -1 if it was given.
        confidence: As in `Trace`.
        removed: Round in which it was re-masked or replaced.
    """

    position: int
    token: int
    committed: int
    confidence: float
    removed: int


class _OneDecode:
    """Refuses steps of a second decode."""

    def __init__(self) -> None:
        self._decode: int | None = None

    def check(self, observer: str, event: StepEvent) -> None:
        """Raises RuntimeError if an event is of another decode than the first."""
        if self._decode is None:
            self._decode = event.decode
        if self._decode != event.decode:
            raise RuntimeError(
                f"{observer} must serve one decode only, got a second. Make a new one."
            )


class Trace:
    """Records at which round each answer position was committed, and how confidently.

    Pass it in `observers`; one trace serves one call of `decode` or `decode_many`. Positions are
    those of `DecodeOutput.tokens`: from the first of the row's own answer, `gen_length` of them.

    Attributes:
        steps: By the prompt's index the round of each answer position's last commit, from 0; -1
            for tokens that were given or filled in behind an EOS.
        confidences: Temperature-1 probability of the token at that round; NaN where `steps` is -1.
        revisions: By the prompt's index the commits that later rounds took back, in their order.
        rounds: Rounds so far, of each prompt's row.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Int[Tensor, " G"]] = {}
        self.confidences: dict[int, Float[Tensor, " G"]] = {}
        self.revisions: dict[int, list[Revision]] = {}
        self.rounds: dict[int, int] = {}
        self._one_decode = _OneDecode()

    def __call__(self, event: StepEvent) -> None:
        self._one_decode.check("A Trace", event)
        start, width = event.view.start, event.view.tokens.shape[1]
        window = slice(start, start + width)
        before, after = event.before.region[:, window], event.after.region[:, window]
        masked, masks_left = event.before.masked[:, window], event.after.masked[:, window]
        committed = ~masks_left & (before != after) & ~_filled(event)[:, window]
        removed = ~masked & (before != after)
        probability = event.view.probability(after.clamp(max=event.view.vocab_size - 1))
        # Once for all rows: the host waits for each of these.
        committed, removed, before = committed.cpu(), removed.cpu(), before.cpu()
        probability = probability.float().cpu()
        length = event.after.gen_length
        leads = torch.stack([event.requests, event.before.lead]).T.tolist()
        for index, (request, lead) in enumerate(leads):
            steps = self.steps.setdefault(request, torch.full((length,), -1))
            confidences = self.confidences.setdefault(request, torch.full((length,), torch.nan))
            past = self.revisions.setdefault(request, [])
            now = self.rounds.get(request, 0)
            # A block-causal model also fills what its last block has beyond the answer.
            inside = slice(max(0, length + lead - start))
            for at in removed[index, inside].nonzero().flatten().tolist():
                position, token = start + at - lead, int(before[index, at])
                confidence = float(confidences[position])
                past.append(Revision(position, token, int(steps[position]), confidence, now))
                steps[position], confidences[position] = -1, torch.nan
            where = committed[index, inside].nonzero().flatten()
            positions = where + start - lead
            steps[positions] = now
            confidences[positions] = probability[index, where]
            self.rounds[request] = now + 1


class Gain(NamedTuple):
    """What a row got from its forwards.

    Attributes:
        per_forward: Tokens that each forward committed, in order; a verifier's accepted lengths.
        committed: Positions that are filled in the end.
    """

    per_forward: list[int]
    committed: int


class Gains:
    """Records how many tokens each forward gave each row.

    The steps that a verifier takes on one forward count together. EOS that the engine fills in
    behind a row's end counts nowhere. Cheap: nothing is looked at until the numbers are asked for.
    Pass it in `observers`; it serves one call of `decode` or `decode_many`.
    """

    def __init__(self) -> None:
        self._steps: list[Int[Tensor, "4 B"]] = []
        self._one_decode = _OneDecode()

    def __call__(self, event: StepEvent) -> None:
        self._one_decode.check("Gains", event)
        before, after = event.before.masked, event.after.masked
        written = (before & ~after & ~_filled(event)).sum(-1)
        removed = (after & ~before).sum(-1)
        # Columns computed so far tell a row's forwards apart; the batch's go on without it.
        forward = event.query_positions
        self._steps.append(torch.stack([event.requests, forward, written, removed]))

    def by_row(self) -> dict[int, Gain]:
        """Returns by the prompt's index the gain of each row that took a step."""
        gains: dict[int, dict[int, int]] = {}
        removed: dict[int, int] = {}
        for step in self._steps:
            for request, forward, num_written, num_removed in step.T.tolist():
                own = gains.setdefault(request, {})
                own[forward] = own.get(forward, 0) + num_written
                removed[request] = removed.get(request, 0) + num_removed
        return {
            request: Gain(list(own.values()), sum(own.values()) - removed[request])
            for request, own in gains.items()
        }


def _filled(event: StepEvent) -> Bool[Tensor, "B R"]:
    """Marks the EOS that stopping a row wrote behind its end, and what cannot be told from it."""
    stopped = event.before.running & ~event.after.running
    region = event.after.region
    eos = event.after.is_eos(region)
    positions = torch.arange(region.shape[1], device=region.device)
    ends = eos & (positions >= event.after.lead[:, None])
    behind = ends.cumsum(-1) - ends.long() > 0
    return stopped[:, None] & behind & (region == event.after.eos_ids[0])

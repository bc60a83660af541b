"""What else a position could have become: its most likely tokens and entropy when committed."""

from dllm_decode import StepEvent
from eval.runs.lines import Told

NUM_TOKENS = 4


class RunnersUp:
    """Observes a decode and keeps, for each answer position, the distribution it was drawn from.

    Positions are those of `Trace`; the last commit of a position counts.

    Attributes:
        told: By the prompt's index and the position, what the last commit chose from.
    """

    def __init__(self) -> None:
        self.told: dict[int, dict[int, Told]] = {}

    def __call__(self, event: StepEvent) -> None:
        columns = event.columns
        before, after = (part.tokens.gather(1, columns) for part in (event.before, event.after))
        committed = ~event.after.masked.gather(1, columns) & (before != after)
        top = event.view.likeliest(min(NUM_TOKENS, event.view.vocab_size))
        rows, at = committed.nonzero(as_tuple=True)
        # Once for all rows: the host waits for each of these.
        entropy = event.view.entropy[rows, at].tolist()
        tokens = top.tokens[rows, at].tolist()
        chances = top.probabilities[rows, at].tolist()
        requests = event.requests[rows].tolist()
        positions = event.view.positions[rows, at].tolist()
        told_all = zip(requests, positions, entropy, tokens, chances, strict=True)
        for request, position, nats, ids, shares in told_all:
            likely = [(i, round(p, 4)) for i, p in zip(ids, shares, strict=True)]
            told = self.told.setdefault(request, {})
            told[position] = (round(nats, 4), likely)

    def of(self, request: int, steps: list[int]) -> list[Told | None]:
        """Returns what was told of each position that a step committed, None of others."""
        told = self.told.get(request, {})
        return [told.get(at) if step >= 0 else None for at, step in enumerate(steps)]

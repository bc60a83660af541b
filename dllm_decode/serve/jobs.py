"""Jobs: requests of the loop, each with an owner who is told how the request goes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import torch

from dllm_decode.core.observers import StepEvent
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.requests import Request
from dllm_decode.text.reading import LEAST_LOGPROB

Shown: TypeAlias = Literal["nothing", "prefix", "canvas"]
"""The tokens that a job's owner is told in each round: none, those that are final, or all."""


class Grown(NamedTuple):
    """The beginning of the answer, whose tokens never change, has become longer."""

    tokens: list[int]


class CanvasShown(NamedTuple):
    """The answer's tokens after a round, `None` where they are unsettled."""

    tokens: list[int | None]
    round: int


class Finished(NamedTuple):
    """The answer has ended."""

    output: DecodeOutput


class Failed(NamedTuple):
    """The job ended without an answer.

    Attributes:
        status: HTTP status.
        message: The reason, for the client.
        code: A word for programs.
    """

    status: int
    message: str
    code: str | None = None


Update: TypeAlias = Grown | CanvasShown | Finished
JobEvent: TypeAlias = Update | Failed


class Scored(NamedTuple):
    """Log-probabilities at one position, at the step that committed its token.

    Attributes:
        logprob: Log-probability of the token.
        top: The likeliest tokens and their log-probabilities.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Recorder:
    """Records at which step each token of one job was committed, and its log-probability.

    Attributes:
        num_top: How many likeliest tokens are recorded; `None`: no log-probabilities.
        steps: For each answer position the step that committed its token, from 0.
        scores: For each answer position the log-probabilities at that step.
    """

    num_top: int | None
    steps: dict[int, int] = field(default_factory=dict)
    scores: dict[int, Scored] = field(default_factory=dict)

    def watch(self, event: StepEvent, number: int, step: int) -> None:
        """Records one row of a step."""
        row = torch.tensor([number], device=event.after.tokens.device)
        view, columns = event.view.take(row), event.columns[row]
        before = event.before.tokens[row].gather(1, columns)
        after = event.after.tokens[row].gather(1, columns)
        changed = ((before != after) & view.in_answer)[0].nonzero().flatten()
        positions = view.positions[0, changed].tolist()
        self.steps.update(dict.fromkeys(positions, step))
        if self.num_top is None:
            return
        logprobs = view.logits[0, changed].double().log_softmax(-1).clamp(min=LEAST_LOGPROB)
        committed = logprobs.gather(-1, after[0, changed, None])[:, 0].tolist()
        top = logprobs.topk(min(self.num_top, view.vocab_size))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        for position, logprob, (tokens, values) in zip(positions, committed, pairs, strict=True):
            self.scores[position] = Scored(logprob, list(zip(tokens, values, strict=True)))


@dataclass(eq=False)
class Job:
    """A request, and an owner who is told how the request goes.

    Attributes:
        request: As `Decoder.request` returns it; its index is the job's own.
        emit: Is called by `post` with each event; the last event is `Finished` or `Failed`.
        post: Calls a function with its arguments, in the owner's thread; jobs with an equal `post`
            get their events together, once a round.
        shown: The tokens that the owner is told in each round.
        client: The client that asked; clients take turns.
        watch: Is called with each step, the number of the job's row in it, and the job's rounds
            before it.
        num_shown: Tokens that the owner was told so far.
        num_rounds: Rounds so far.
    """

    request: Request
    emit: Callable[[JobEvent], None]
    post: Callable[..., object]
    shown: Shown = "nothing"
    client: str = ""
    watch: Callable[[StepEvent, int, int], None] | None = None
    num_shown: int = 0
    num_rounds: int = 0

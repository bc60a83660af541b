"""Typed reads: the probability of each allowed answer at some places of a text.

    read(model, tokenizer, "emma has [12|15] apples , which is [even|odd] .")

The choices are masked and the model is run once. The probability of an answer of several tokens is
the product of the probability of each token given those before it, so that every further token
needs one more row. Other choices stay masked, as long as their longest answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch

from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.prompts import Prompt
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.sizes import round_up
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder, raise_errors
from dllm_decode.engine.loop import run
from dllm_decode.text.blanks import Choice, pieces_of, start_ids
from dllm_decode.text.tokenization import ChatMode, Inputs, Tokenizer, prompt_ids, require_tokenizer
from samplers.base import Decision, Sampler
from samplers.facts import Fact
from samplers.view import View

Piece: TypeAlias = list[int] | Choice
"""A part of a text: token ids, or a choice."""

LEAST_LOGPROB = -9999.0
"""Least log-probability that is told, because JSON has no -inf."""


@dataclass(frozen=True)
class ReadAnswer:
    """An allowed answer of a choice.

    Attributes:
        text: The answer.
        probability: The product of the model's probabilities of its tokens, left to right.
        logprob: Its natural logarithm, at least -9999.
        share: The probability among the allowed answers; all shares add up to 1.
    """

    text: str
    probability: float
    logprob: float
    share: float


@dataclass(frozen=True)
class ReadChoice:
    """A choice, as the model reads it.

    Attributes:
        best: The most probable answer.
        answers: All answers, in the order of the text.
    """

    best: str
    answers: list[ReadAnswer]

    @staticmethod
    def of(texts: Sequence[str], logprobs: Sequence[float]) -> "ReadChoice":
        """Returns a choice whose answers have these log-probabilities."""
        highest = max(logprobs)
        weights = [math.exp(logprob - highest) for logprob in logprobs]
        answers = [
            ReadAnswer(text, math.exp(logprob), logprob, weight / sum(weights))
            for text, logprob, weight in zip(texts, logprobs, weights, strict=True)
        ]
        return ReadChoice(texts[logprobs.index(highest)], answers)


def read(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    text: str,
    inputs: Inputs | Prompt | None = None,
    *,
    chat: ChatMode = "auto",
    num_rows: int = 8,
) -> list[ReadChoice]:
    """Reads how probable each allowed answer is at each choice of a text.

    A probability is the model's own, at temperature 1 and over all tokens, if the answer is one
    token: that of the token at this place, given the rest of the text, with all other choices and
    blanks masked. For several tokens it is a product of such probabilities, left to right; this is
    exact for a model whose conditionals belong to one distribution, and depends on the order for
    trained models. Answers of different lengths are given different numbers of masks, so that
    comparing these is an approximation. Several choices are read one by one: the probabilities are
    not those of a combination of answers. A block-causal model does not see the text after the
    block in which a choice is.

    Args:
        model: The mask predictor.
        tokenizer: Its tokenizer.
        text: The text, with choices such as `[yes|no]`, and blanks such as `[MASK:3]`.
        inputs: A text, a chat or token ids that the text answers, as in `generate`; `None`: the
            text answers no input.
        chat: As in `generate`.
        num_rows: Rows that are run together, at most.

    Returns:
        The choices, in the order of the text.

    Raises:
        ValueError: If the text has no choice, or something does not fit.
    """
    require_tokenizer(tokenizer)
    pieces = pieces_of(tokenizer, text, model)
    prompts: list[Prompt] = (
        [start_ids(tokenizer)] if inputs is None else prompt_ids(tokenizer, inputs, chat=chat)
    )
    if len(prompts) != 1:
        raise ValueError(f"read takes one input, got {len(prompts)}.")
    plan = ReadPlan.of(pieces, model.mask_id)
    decoder = _reading_decoder(model, max(len(row.template) for row in plan.rows))

    def watch(event: StepEvent) -> None:
        for index, number in enumerate(event.request_indices.tolist()):
            plan.rows[number].watch(event, index)

    requests = [
        decoder.request(prompts[0], number, template=row.template, gen_length=len(row.template))
        for number, row in enumerate(plan.rows)
    ]
    for _ in raise_errors(run(decoder, RequestQueue(requests), num_rows, [watch])):
        pass
    choices = [piece for piece in pieces if isinstance(piece, Choice)]
    return [
        ReadChoice.of(choice.texts, logprobs)
        for choice, logprobs in zip(choices, plan.logprobs(), strict=True)
    ]


@dataclass
class ReadRow:
    """One row: a template, and the log-probabilities read from the row's first forward.

    Attributes:
        template: The text, with the mask id at its blanks.
        wanted: Answer positions and tokens.
        found: Their log-probabilities.
    """

    template: tuple[int, ...]
    wanted: set[tuple[int, int]] = field(default_factory=set)
    found: dict[tuple[int, int], float] = field(default_factory=dict)

    def watch(self, event: StepEvent, number: int) -> None:
        """Reads the probabilities from a step, if it is the first one."""
        if self.found:
            return
        device = event.after.tokens.device
        view = event.view.take(torch.tensor([number], device=device))
        first, width = int(view.positions[0, 0]), view.tokens.shape[1]
        # Each call asks for one token at each position.
        unread = sorted(self.wanted)
        while unread:
            token_at = dict(unread)
            tokens = torch.zeros(1, width, dtype=torch.long)
            for position, token in token_at.items():
                tokens[0, position - first] = token
            probabilities = view.probability(tokens.to(device))[0].tolist()
            for position, token in token_at.items():
                probability = probabilities[position - first]
                logprob = math.log(probability) if probability > 0.0 else LEAST_LOGPROB
                self.found[position, token] = logprob
            unread = [pair for pair in unread if pair not in self.found]


TokenRead: TypeAlias = tuple[ReadRow, tuple[int, int]]
"""The row in which a token of an answer is read, and its answer position and token."""


class ReadPlan(NamedTuple):
    """The rows of a read.

    Attributes:
        rows: The rows, each once.
        answers: For each choice and each answer of the choice, where the answer's tokens are read.
    """

    rows: list[ReadRow]
    answers: list[list[list[TokenRead]]]

    @staticmethod
    def of(pieces: Sequence[Piece], mask_id: int) -> "ReadPlan":
        """Returns the rows that read every choice of a text."""
        rows: dict[tuple[int, ...], ReadRow] = {}
        answers = [
            [_steps(pieces, piece, answer, mask_id, rows) for answer in piece.token_ids]
            for piece in pieces
            if isinstance(piece, Choice)
        ]
        return ReadPlan(list(rows.values()), answers)

    def logprobs(self) -> list[list[float]]:
        """Returns the log-probability of each answer of each choice, once all rows have run."""
        return [
            [max(LEAST_LOGPROB, sum(row.found[key] for row, key in reads)) for reads in choice]
            for choice in self.answers
        ]


def _steps(
    pieces: Sequence[Piece],
    choice: Choice,
    answer: tuple[int, ...],
    mask_id: int,
    rows: dict[tuple[int, ...], ReadRow],
) -> list[TokenRead]:
    """Returns where each token of an answer is read; adds the necessary rows to `rows`."""
    steps: list[TokenRead] = []
    for number, token in enumerate(answer):
        template: list[int] = []
        start = 0
        for piece in pieces:
            if piece is choice:
                start = len(template)
                template += [*answer[:number], *[mask_id] * (len(answer) - number)]
            else:
                template += piece.masked(mask_id) if isinstance(piece, Choice) else piece
        row = rows.setdefault(tuple(template), ReadRow(tuple(template)))
        row.wanted.add((start + number, token))
        steps.append((row, (start + number, token)))
    return steps


@dataclass(frozen=True)
class AllAtOnce(Sampler[None]):
    """Commits every eligible position in one step."""

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.FINAL_TOKENS})

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        return Decision(commit=view.eligible), state


def _reading_decoder(model: MaskPredictor, max_tokens: int) -> Decoder:
    """Returns a decoder that reads a whole answer of `max_tokens` tokens in one forward."""
    step = model.causal_block_length or 1
    # Blocks count from the prompt's first column, so that the text may begin within one.
    length = round_up(max_tokens + step - 1, step)
    config = DecodeConfig(gen_length=length, block_length=length, stop_at_eos=False)
    return new_decoder(model, AllAtOnce(), config=config)

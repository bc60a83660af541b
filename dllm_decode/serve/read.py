"""Typed reads: the probability of each allowed answer in each slot of a text.

    text   = "emma has {n} apples, which is {kind}"
    slots  = {"n": ["12", "15"], "kind": ["even", "odd"]}

The slots are masked and the model is run once. The probability of an answer of several tokens is
the product of the probability of each token given those before it, so that every further token
needs one more row. Other slots stay masked, as long as their longest answer.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from dllm_decode.core.observers import StepEvent
from dllm_decode.serve.asks import chat_ids
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.fields import Read
from dllm_decode.serve.jobs import LEAST_LOGPROB, Finished, Job
from dllm_decode.serve.service import Channel, Service


class Piece(NamedTuple):
    """A part of the text: given tokens, or a slot with the tokens of its answers."""

    given: list[int]
    slot: str | None = None
    answers: tuple[tuple[int, ...], ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the slot while another one is read."""
        return max(len(answer) for answer in self.answers)


@dataclass
class Look:
    """One row: a template, and the log-probabilities that are read from its first forward.

    Attributes:
        template: The text, the mask id where it is open.
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
        left = sorted(self.wanted)
        while left:
            asked = dict(left)
            tokens = torch.zeros(1, width, dtype=torch.long)
            for position, token in asked.items():
                tokens[0, position - first] = token
            chances = view.probability(tokens.to(device))[0].tolist()
            for position, token in asked.items():
                chance = chances[position - first]
                logprob = math.log(chance) if chance > 0.0 else LEAST_LOGPROB
                self.found[position, token] = logprob
            left = [pair for pair in left if pair not in self.found]


async def read(service: Service, asked: Read, channel: Channel) -> dict[str, Any]:
    """Answers a typed read.

    Raises:
        RefusedError: If something does not fit.
    """
    prompt, pieces = _prompt(service, asked), _pieces(service, asked)
    looks: dict[tuple[int, ...], Look] = {}
    mask_id = channel.lane.decoder.model.mask_id
    answers = {
        piece.slot: [_steps(pieces, piece, answer, mask_id, looks) for answer in piece.answers]
        for piece in pieces
        if piece.slot is not None
    }
    channel.submit(_jobs(service, channel, prompt, list(looks.values())))
    for _ in looks:
        _, event = await channel.next()
        assert isinstance(event, Finished)
    slots = {
        name: _slot(asked.slots[name], [_joint(steps) for steps in answers[name]])
        for name in asked.slots
    }
    num_tokens = len(prompt) + sum(len(look.template) for look in looks.values())
    return {
        "object": "read",
        "model": service.name,
        "slots": slots,
        "rows": len(looks),
        "usage": {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens},
    }


def _prompt(service: Service, asked: Read) -> list[int]:
    if asked.messages is not None:
        if asked.prompt is not None:
            message = "'prompt' and 'messages' must not both be given."
            raise RefusedError(400, message, param="messages")
        return chat_ids(service, asked.messages)
    found = list(service.tokenizer(asked.prompt or "")["input_ids"])
    if not found:
        bos = service.tokenizer.bos_token_id
        if bos is None:
            message = (
                "'prompt' must have at least one token: this model has no token to begin with."
            )
            raise RefusedError(400, message, param="prompt")
        found = [bos]
    return found


def _pieces(service: Service, asked: Read) -> list[Piece]:
    """Returns the token ids of the parts between the slots of the text, and of the answers."""

    def ids(text: str) -> list[int]:
        return list(service.tokenizer(text, add_special_tokens=False)["input_ids"])

    names = "|".join(re.escape(name) for name in asked.slots)
    parts = re.split(r"\{(" + names + r")\}", asked.text)
    if sorted(parts[1::2]) != sorted(asked.slots):
        message = "'text' must name each slot once, as {name}."
        raise RefusedError(400, message, param="text")
    found = []
    for number, part in enumerate(parts):
        if number % 2 == 0:
            found.append(Piece(ids(part)))
            continue
        answers = tuple(tuple(ids(answer)) for answer in asked.slots[part])
        if not all(answers) or len(set(answers)) < len(answers):
            raise RefusedError(
                400, f"The answers of slot {part!r} must differ, and have at least one token each.",
                param="slots",
            )  # fmt: skip
        found.append(Piece([], part, answers))
    return found


def _steps(
    pieces: Sequence[Piece],
    read_piece: Piece,
    answer: tuple[int, ...],
    mask_id: int,
    looks: dict[tuple[int, ...], Look],
) -> list[tuple[Look, tuple[int, int]]]:
    """Returns where each token of an answer is read; adds the rows that this needs."""
    steps = []
    for number, token in enumerate(answer):
        template: list[int] = []
        start = 0
        for piece in pieces:
            if piece is read_piece:
                start = len(template)
                template += [*answer[:number], *[mask_id] * (len(answer) - number)]
            else:
                template += piece.given if piece.slot is None else [mask_id] * piece.length
        look = looks.setdefault(tuple(template), Look(tuple(template)))
        look.wanted.add((start + number, token))
        steps.append((look, (start + number, token)))
    return steps


def _jobs(
    service: Service, channel: Channel, prompt: list[int], looks: Sequence[Look]
) -> list[Job]:  # fmt: skip
    limits, jobs = service.limits, []
    if len(looks) > limits.max_choices:
        message = f"The answers need {len(looks)} rows, at most {limits.max_choices} are allowed."
        raise RefusedError(400, message, param="slots")
    for number, look in enumerate(looks):
        length = len(look.template)
        if length > limits.max_tokens or len(prompt) + length > limits.max_length:
            message = (
                f"'text' must have at most {limits.max_tokens} tokens, and {limits.max_length} "
                f"with the prompt, got {length} and {len(prompt)}."
            )
            raise RefusedError(400, message, param="text")
        index = next(service.indices)
        request = channel.request(prompt, index, template=look.template, gen_length=length)
        jobs.append(Job(request, channel.emitter(number), watch=look.watch))
    return jobs


def _joint(steps: Sequence[tuple[Look, tuple[int, int]]]) -> float:
    return max(LEAST_LOGPROB, sum(look.found[place] for look, place in steps))


def _slot(texts: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    """Returns the body of one slot.

    `share` is the probability among the allowed answers.
    """
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    answers = [
        {
            "text": text,
            "probability": math.exp(logprob),
            "logprob": logprob,
            "share": weight / sum(weights),
        }
        for text, logprob, weight in zip(texts, logprobs, weights, strict=True)
    ]
    return {"best": texts[logprobs.index(highest)], "answers": answers}

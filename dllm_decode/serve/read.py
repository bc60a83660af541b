"""Typed reads of clients, see `dllm_decode.text.reading`: slots in braces, answers by slot."""

import re
from collections.abc import Sequence
from dataclasses import asdict

from dllm_decode.serve.answers import Json, usage_of
from dllm_decode.serve.chats import chat_ids
from dllm_decode.serve.errors import RefusedError, refusing
from dllm_decode.serve.fields import Read
from dllm_decode.serve.jobs import Finished, Job
from dllm_decode.serve.service import Channel, Service
from dllm_decode.text.blanks import Choice, start_ids
from dllm_decode.text.reading import Piece, ReadChoice, ReadPlan, ReadRow


async def read(service: Service, asked: Read, channel: Channel) -> Json:
    """Answers a typed read.

    Raises:
        RefusedError: If something does not fit.
    """
    prompt, (names, pieces) = _prompt(service, asked), _pieces(service, asked)
    _check_sizes(service, prompt, pieces)
    plan = ReadPlan.of(pieces, channel.lane.decoder.model.mask_id)
    looks = plan.looks
    channel.submit(_jobs(service, channel, prompt, looks))
    for _ in looks:
        _, event = await channel.next()
        assert isinstance(event, Finished)
    logprobs = dict(zip(names, plan.logprobs(), strict=True))
    slots = {
        name: asdict(ReadChoice.of(texts, logprobs[name])) for name, texts in asked.slots.items()
    }
    num_tokens = len(prompt) + sum(len(look.template) for look in looks)
    return {
        "object": "read",
        "model": service.name,
        "slots": slots,
        "rows": len(looks),
        "usage": usage_of(num_tokens, 0),
    }


def _prompt(service: Service, asked: Read) -> list[int]:
    if asked.messages is not None:
        if asked.prompt is not None:
            message = "'prompt' and 'messages' must not both be given."
            raise RefusedError(400, message, param="messages")
        return chat_ids(service, asked.messages)
    prompt_ids = list(service.tokenizer(asked.prompt or "")["input_ids"])
    with refusing():
        return prompt_ids or start_ids(service.tokenizer)


def _pieces(service: Service, asked: Read) -> tuple[list[str], list[Piece]]:
    """Returns the names of the slots in the order of the text, and its parts."""
    names = "|".join(re.escape(name) for name in asked.slots)
    parts = re.split(r"\{(" + names + r")\}", asked.text)
    if sorted(parts[1::2]) != sorted(asked.slots):
        message = "'text' must name each slot once, as {name}."
        raise RefusedError(400, message, param="text")
    pieces: list[Piece] = []
    for number, part in enumerate(parts):
        if number % 2 == 0:
            pieces.append(service.ids(part))
            continue
        answers = tuple(tuple(service.ids(answer)) for answer in asked.slots[part])
        if not all(answers) or len(set(answers)) < len(answers):
            raise RefusedError(
                400, f"The answers of slot {part!r} must differ, and have at least one token each.",
                param="slots",
            )  # fmt: skip
        pieces.append(Choice(tuple(asked.slots[part]), answers))
    return parts[1::2], pieces


def _check_sizes(service: Service, prompt: list[int], pieces: Sequence[Piece]) -> None:
    """Raises a refusal if the rows are too many or too long, before the rows are made."""
    lengths = [max(map(len, piece.token_ids)) for piece in pieces if isinstance(piece, Choice)]
    num_given = sum(len(piece) for piece in pieces if not isinstance(piece, Choice))
    # Each token after the first of a slot's longest answer needs a row of its own.
    _check_rows(service, 1 + sum(lengths) - len(lengths))
    service.check_lengths(len(prompt), num_given + sum(lengths), field="text")


def _check_rows(service: Service, num_rows: int) -> None:
    most = service.limits.max_choices
    if num_rows > most:
        message = f"The answers need {num_rows} rows, at most {most} are allowed."
        raise RefusedError(400, message, param="slots")


def _jobs(
    service: Service, channel: Channel, prompt: list[int], looks: Sequence[ReadRow]
) -> list[Job]:  # fmt: skip
    _check_rows(service, len(looks))
    jobs = []
    for number, look in enumerate(looks):
        length, index = len(look.template), next(service.indices)
        with refusing():
            request = channel.lane.decoder.request(
                prompt, index, template=look.template, gen_length=length
            )
        job = Job(request, channel.emitter(number), channel.post, client=channel.client)
        job.watch = lambda event, row, _, look=look: look.watch(event, row)
        jobs.append(job)
    return jobs

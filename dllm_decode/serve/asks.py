"""Requests of clients as rows of the loop."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.rows import Request
from dllm_decode.core.stopping import NeverStop, StopRule, StopStrings
from dllm_decode.options import RequestOptions
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.fields import Asked, Chat, Completion, Turn
from dllm_decode.serve.jobs import Job, Recorder, Shown
from dllm_decode.serve.service import Channel, Service
from dllm_decode.serve.text import Prose


@dataclass
class Choice:
    """One answer of a response.

    Attributes:
        number: Its index in the response.
        job: The row.
        prose: Its text.
        recorder: Its steps and log-probabilities, if they were asked for.
        ignores_eos: True if the answer goes on after an EOS.
        wants_trace: True if the steps were asked for.
    """

    number: int
    job: Job
    prose: Prose
    recorder: Recorder | None
    ignores_eos: bool
    wants_trace: bool

    def tokens(self, output: DecodeOutput) -> list[int]:
        """Returns the tokens of the answer: before its EOS, up to its first stop string."""
        found = output.tokens[0].tolist() if self.ignores_eos else output.answers()[0]
        return self.prose.kept(found)

    def finish_reason(self, output: DecodeOutput) -> str:
        """Returns "stop" after an EOS or a stop string, "length" if the answer is full."""
        found = output.tokens[0].tolist()
        tokens = found if self.ignores_eos else output.answers()[0]
        return "stop" if len(tokens) < len(found) or self.prose.stops(tokens) else "length"


def prompts_of(service: Service, asked: Completion | Chat) -> list[list[int]]:
    """Returns the token ids of the prompts of a request.

    Raises:
        RefusedError: If a prompt cannot be tokenized.
    """
    if isinstance(asked, Chat):
        tools = [tool.model_dump() for tool in asked.tools or []]
        return [chat_ids(service, asked.messages, tools)]
    tokenizer = service.tokenizer
    return [
        list(tokenizer(prompt)["input_ids"]) if isinstance(prompt, str) else prompt
        for prompt in asked.prompt
    ]


def chat_ids(
    service: Service, messages: Sequence[Turn], tools: Sequence[dict[str, Any]] = ()
) -> list[int]:
    """Returns the token ids of a chat, in the model's own template.

    Raises:
        RefusedError: If the model has no template, or it refuses the turns or ignores the tools.
    """
    tokenizer = service.tokenizer
    if tokenizer.chat_template is None:
        message = "This model has no chat template. Use /v1/completions."
        raise RefusedError(400, message, param="messages")
    text = _rendered(service, messages, tools)
    if tools and text == _rendered(service, messages, ()):
        message = "The chat template of this model ignores tools; leave them out."
        raise RefusedError(400, message, param="tools", code="unsupported_parameter")
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _rendered(
    service: Service, messages: Sequence[Turn], tools: Sequence[dict[str, Any]]
) -> str:  # fmt: skip
    # Templates know the older name.
    roles = {"developer": "system"}
    chat = [{"role": roles.get(turn.role, turn.role), "content": turn.content} for turn in messages]
    try:
        text: str = service.tokenizer.apply_chat_template(
            chat, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
        text.encode()
    # A template may do anything with tools of an unusual shape.
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        message = f"The model's chat template refuses these messages: {error}"
        raise RefusedError(400, message, param="messages") from None
    return text


def choices_of(
    service: Service, asked: Completion | Chat, prompts: Sequence[list[int]], channel: Channel
) -> list[Choice]:
    """Returns the answers that a request asks for, prompt by prompt.

    Raises:
        RefusedError: If an option is wrong.
    """
    copies, most = asked.n or 1, service.limits.max_choices
    if len(prompts) * copies > most:
        raise RefusedError(
            400, f"A request may ask for at most {most} answers, got {len(prompts) * copies}.",
            param="n",
        )  # fmt: skip
    options = _options(service, asked, channel)
    template = template_ids(service, channel, asked.template or [])
    stop: StopRule = NeverStop()
    if asked.stop:
        stop = StopStrings(service.stop_tokenizer, tuple(asked.stop))
    found = []
    for number in range(len(prompts) * copies):
        prompt, copy = prompts[number // copies], number % copies
        _check_length(service, len(prompt), options["gen_length"])
        index = next(service.indices)
        request = channel.request(
            prompt, index, noise_index=copy, template=template, stop=stop, **options
        )
        found.append(_choice(service, asked, channel, number, request))
    return found


def _choice(
    service: Service, asked: Completion | Chat, channel: Channel, number: int, request: Request
) -> Choice:
    wants_trace = bool(asked.return_trace)
    recorder = Recorder(asked.num_top) if wants_trace or asked.num_top is not None else None
    watch = None if recorder is None else recorder.watch
    job = Job(request, channel.emitter(number), shown=_shown(asked), watch=watch)
    prose = Prose(service.tokenizer, asked.stop)
    return Choice(number, job, prose, recorder, not request.config.stop_at_eos, wants_trace)


def template_ids(
    service: Service, channel: Channel, parts: Sequence[str | int]
) -> list[int]:  # fmt: skip
    """Returns the token ids of texts that are given and counts of tokens that are open."""
    tokenizer, mask_id = service.tokenizer, channel.lane.decoder.model.mask_id
    found: list[int] = []
    for part in parts:
        if isinstance(part, str):
            found += tokenizer(part, add_special_tokens=False)["input_ids"]
        else:
            # A count can be any number; the lengths are checked afterwards.
            found += [mask_id] * min(part, service.limits.max_length)
    return found


def _shown(asked: Asked) -> Shown:
    if asked.stream_mode == "denoise" and not asked.stream:
        raise RefusedError(400, "'stream_mode' needs \"stream\": true.", param="stream_mode")
    if not asked.stream:
        return "nothing"
    return "canvas" if asked.stream_mode == "denoise" else "prefix"


def _options(service: Service, asked: Completion | Chat, channel: Channel) -> RequestOptions:
    """Returns the options of a request; those that it does not say are the server's."""
    config = channel.lane.decoder.config
    temperature = config.temperature if asked.temperature is None else asked.temperature
    seed = asked.seed
    if seed is None:
        # As users of other servers expect: without a seed, every draw is another one.
        draws = temperature > 0.0 or channel.lane.decoder.starts_as_noise
        seed = secrets.randbits(63) if draws else config.seed
    return {
        "gen_length": _gen_length(service, asked),
        "temperature": temperature,
        "top_p": config.top_p if asked.top_p is None else asked.top_p,
        "top_k": config.top_k if asked.top_k is None else max(0, asked.top_k),
        "seed": seed,
        "stop_at_eos": config.stop_at_eos if asked.ignore_eos is None else not asked.ignore_eos,
    }


def _gen_length(service: Service, asked: Completion | Chat) -> int:
    asked_for = {asked.max_tokens}
    name = "max_tokens"
    if isinstance(asked, Chat) and asked.max_completion_tokens is not None:
        name = "max_completion_tokens"
        asked_for.add(asked.max_completion_tokens)
    given = asked_for - {None}
    if len(given) > 1:
        message = "'max_tokens' and 'max_completion_tokens' must be equal if both are given."
        raise RefusedError(400, message, param="max_tokens")
    found, most = next(iter(given), None) or service.limits.gen_length, service.limits.max_tokens
    if found > most:
        message = f"{name!r} must be at most {most} on this server, got {found}."
        raise RefusedError(400, message, param=name)
    return found


def _check_length(service: Service, prompt_length: int, gen_length: int) -> None:
    most = service.limits.max_length
    if prompt_length + gen_length > most:
        raise RefusedError(
            400,
            f"Prompt and answer must have at most {most} tokens together on this server, got "
            f"{prompt_length} and {gen_length}.",
            code="context_length_exceeded",
        )

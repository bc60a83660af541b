"""The answers that a request asks for: a row of the loop for each, and how its text is sent."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dllm_decode.core.automaton import Automaton
from dllm_decode.core.options import RequestOptions
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.stopping import stop_rule
from dllm_decode.serve.chats import chat_ids
from dllm_decode.serve.errors import RefusedError, refusing
from dllm_decode.serve.jobs import Job, Recorder
from dllm_decode.serve.message_readers import CallReader, MessageReader
from dllm_decode.serve.request_fields import Chat, Completion, CompletionFields
from dllm_decode.serve.service import Channel, Service
from dllm_decode.text.brackets import split_blanks
from dllm_decode.text.prose import Prose

# Tokens at the end of a prompt that may begin the reasoning of its answer.
_NUM_LAST = 32


@dataclass
class ResponseChoice:
    """One answer of a response.

    Attributes:
        number: Its index in the response.
        job: The row.
        prose: Its text.
        recorder: Its steps and log-probabilities, if the client asked for them.
        reader: Reads its text as parts of a message.
        num_sent: Tokens that were sent to the client.
        is_begun: True once a part was sent to the client.
    """

    number: int
    job: Job
    prose: Prose
    reader: MessageReader | CallReader
    recorder: Recorder | None = None
    num_sent: int = 0
    is_begun: bool = False

    def end(self, output: DecodeOutput) -> tuple[list[int], str]:
        """Returns the tokens of the answer up to its first stop string, and why it has ended.

        The reason is "length" if the answer is full, without a constraint or a stop string.
        """
        all_tokens = output.tokens[0].tolist()
        tokens = output.answers()[0] if self.job.request.config.stop_at_eos else all_tokens
        is_complete = len(tokens) < len(all_tokens) or self.job.request.constraint is not None
        has_ended = is_complete or self.prose.stops(tokens)
        return self.prose.kept(tokens), "stop" if has_ended else "length"


def prompts_of(service: Service, asked: Completion | Chat) -> list[list[int]]:
    """Returns the token ids of the prompts of a request.

    Raises:
        RefusedError: If a prompt cannot be tokenized.
    """
    if isinstance(asked, Chat):
        tools = [tool.model_dump() for tool in asked.listed_tools]
        return [chat_ids(service, asked.messages, tools=tools, arguments=asked.template_arguments)]
    tokenizer = service.tokenizer
    return [
        list(tokenizer(prompt)["input_ids"]) if isinstance(prompt, str) else prompt
        for prompt in asked.prompt
    ]


def choices_of(
    service: Service,
    asked: Completion | Chat,
    prompts: Sequence[list[int]],
    channel: Channel,
    automaton: Automaton | None,
) -> list[ResponseChoice]:
    """Returns the answers that a request asks for, prompt by prompt.

    Raises:
        RefusedError: If an option is wrong.
    """
    decoder, copies, most = channel.lane.decoder, asked.n or 1, service.limits.max_waiting
    if len(prompts) * copies > most:
        message = f"A request may ask for at most {most} answers, got {len(prompts) * copies}."
        raise RefusedError(400, message, param="n")
    if decoder.is_uniform_state and asked.num_top is not None:
        message = "This model draws all tokens anew in each step; leave out log-probabilities."
        raise RefusedError(400, message, param="logprobs", code="unsupported_parameter")
    options = _options(service, asked, channel)
    template = _template_ids(service, channel, asked.template or "")
    _check_room(channel, automaton, template, options["gen_length"])
    stop = stop_rule(service.stop_tokenizer, tuple(asked.stop))
    hidden_ids, make_reader = _reader_of(service, asked, prompts[0], automaton is not None)
    choices = []
    for number in range(len(prompts) * copies):
        prompt, copy = prompts[number // copies], number % copies
        service.check_lengths(len(prompt), options["gen_length"])
        with refusing():
            request = decoder.request(
                prompt, next(service.indices), noise_index=copy, template=template, stop=stop,
                constraint=automaton, **options,
            )  # fmt: skip
        job = Job(request, channel.emitter(number), channel.post, asked.shown, channel.client)
        prose = Prose(service.tokenizer, asked.stop, hidden_ids)
        choice = ResponseChoice(number, job, prose, make_reader())
        if asked.return_trace or asked.num_top is not None:
            choice.recorder = Recorder(asked.num_top)
            job.watch = choice.recorder.watch
        choices.append(choice)
    return choices


def _reader_of(
    service: Service, asked: Completion | Chat, prompt: list[int], has_form: bool
) -> tuple[set[int] | None, Callable[[], MessageReader | CallReader]]:
    """Returns the tokens that an answer does not show, and a function that makes its reader.

    An answer with a form is all content, because a form has no calls and no reasoning.
    """
    if asked.forced:
        return None, CallReader
    if has_form or not isinstance(asked, Chat):
        return None, MessageReader
    tokenizer, parsers, has_tools = service.tokenizer, service.parsers, bool(asked.listed_tools)
    template = tokenizer.get_chat_template(tools=[{}] if has_tools else None)
    calls = parsers.call_format(template) if has_tools else None
    reasoning = parsers.reasoning_tags(template)
    is_reasoning = reasoning is not None and (
        tokenizer.decode(prompt[-_NUM_LAST:]).rstrip().endswith(reasoning.begin)
    )
    is_parallel = asked.parallel_tool_calls is not False
    make_reader = partial(
        MessageReader, calls, reasoning, is_reasoning=is_reasoning, is_parallel=is_parallel
    )
    read = {*(reasoning or ()), *(() if calls is None else (*calls.tags, *calls.tokens))}
    if not read:
        return None, make_reader
    special = {
        number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and not any(text.startswith(token.content) for text in read)
    }
    return special, make_reader


def _check_room(
    channel: Channel, automaton: Automaton | None, template: Sequence[int], gen_length: int
) -> None:
    """Raises a refusal if no text that a constraint allows is short enough."""
    if automaton is None:
        return
    least = automaton.least_length(template, channel.lane.decoder.model.mask_id)
    if least is not None and least > gen_length:
        message = (
            f"'max_tokens' must be at least {least}, the tokens of the shortest answer of the form "
            f"that is asked for, got {gen_length}."
        )
        raise RefusedError(400, message, param="max_tokens")


def _template_ids(service: Service, channel: Channel, text: str) -> list[int]:
    """Returns the token ids of a text with blanks, the mask id at its blanks.

    Raises:
        RefusedError: If the template has more tokens than an answer may have.
    """
    with refusing():
        texts, lengths = split_blanks(text)
    token_ids: list[int] = []
    mask_id, most = channel.lane.decoder.model.mask_id, service.limits.max_tokens
    for length, words in zip([0, *lengths], texts, strict=True):
        token_ids += [mask_id] * min(length, most + 1) + service.ids(words)
        # Checked after each blank, because there may be many.
        if len(token_ids) > most:
            message = f"'template' must be at most {most} tokens on this server."
            raise RefusedError(400, message, param="template")
    return token_ids


def _options(service: Service, fields: CompletionFields, channel: Channel) -> RequestOptions:
    """Returns the options of a request; options that the request leaves out are the server's."""
    config = channel.lane.decoder.config
    temperature = config.temperature if fields.temperature is None else fields.temperature
    seed = fields.seed
    if seed is None:
        # Without a seed, each request draws anew, as users of other servers expect.
        draws = temperature > 0.0 or channel.lane.decoder.is_uniform_state
        seed = secrets.randbits(63) if draws else config.seed
    return {
        "gen_length": fields.max_tokens or service.limits.gen_length,
        "temperature": temperature,
        "top_p": config.top_p if fields.top_p is None else fields.top_p,
        "top_k": config.top_k if fields.top_k is None else max(0, fields.top_k),
        "seed": seed,
        "stop_at_eos": config.stop_at_eos if fields.ignore_eos is None else not fields.ignore_eos,
    }

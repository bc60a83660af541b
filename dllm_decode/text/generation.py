"""Texts, chats or token ids in, texts out."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, Unpack

from torch.nn.functional import pad

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.automaton import Automaton
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.observers import Observer
from dllm_decode.core.options import DecodeConfig, DecodeOptions, require_integer
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.prompts import (
    Array,
    Prompt,
    filling_options,
    require_one_each,
    require_templates,
)
from dllm_decode.core.rows import Request, RequestQueue
from dllm_decode.core.stopping import NeverStop, StopRule, StopStrings
from dllm_decode.core.uniform_state_checks import check_config
from dllm_decode.engine.compatibility import default_sampler, require_model, require_plugins
from dllm_decode.engine.decoder import Decoder, Verifier
from dllm_decode.engine.join import Ended
from dllm_decode.engine.loop import (
    gather_outputs,
    new_decoder,
    raise_errors,
    require_observers,
    run,
)
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.requests import requests_of, require_seeds
from dllm_decode.text import constraints
from dllm_decode.text.answers import GenerateOutput, answer_of
from dllm_decode.text.blanks import start_ids, template_ids
from dllm_decode.text.generate_options import GenerateOptions, by_our_names
from dllm_decode.text.streamer import PrefixStreamer, answer_stream
from dllm_decode.text.texts import Inputs, Tokenizer, UseTemplate, prompt_ids, require_tokenizer
from samplers.base import Sampler
from samplers.checks import shown

T = TypeVar("T")


def generate(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    inputs: Inputs | None = None,
    sampler: Sampler | None = None,
    *,
    chat: UseTemplate = "auto",
    templates: str | Sequence[str] = (),
    attention_mask: Array | Sequence[Any] | None = None,
    config: DecodeConfig = DecodeConfig(),
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    observers: Sequence[Observer] = (),
    streamer: PrefixStreamer | None = None,
    constraint: "constraints.Constraint | Sequence[constraints.Constraint | None] | None" = None,
    stop_strings: str | Sequence[str] = (),
    num_return_sequences: int = 1,
    seeds: Iterable[int] = (),
    return_logprobs: bool = False,
    num_rows: int = 8,
    progress: bool = False,
    **options: Unpack[GenerateOptions],
) -> GenerateOutput:
    """Answers texts or chats.

        model, tokenizer = load_model("mini")
        question = (
            "emma has 12 apples . emma finds 5 more apples and then gives 2 apples to ben . "
            "how many apples does emma have now ?"
        )
        out = generate(model, tokenizer, question)
        print(out.texts[0])

    With `templates`, the blanks of texts are filled:

        out = generate(model, tokenizer, question, templates="now [MASK:5] . #### [MASK]")

    Args:
        model: The mask predictor.
        tokenizer: The model's tokenizer, as `load_model` returns it.
        inputs: A text or texts, see `chat`; a chat or chats, lists of turns with "role" and
            "content", which go through the tokenizer's chat template; or token ids: a list, lists,
            a tensor or array with its `attention_mask`, or the tokenizer's output, also as
            `**tokenizer(text)`. May be left out with `templates`.
        sampler: Which positions to commit, and with which token. `None`:
            `ConfidenceThreshold(0.9)`, on a uniform-state model `AcceptAndRenoise()`.
        chat: How texts are read. "auto": as one user turn of the chat template if the tokenizer
            has a template. True: always as such a turn. False: as they are, with a warning if there
            is a template. A text that begins with a special token counts as already templated: with
            "auto" and False its tokens are read, and nothing is added.
        templates: For each input, the answer with blanks: `[MASK:12]` is twelve open tokens,
            `[MASK]`, or the tokenizer's own mask token, is one. The answer is as long as the
            template. An EOS in a blank leaves that position empty, so that a blank is filled with
            as many tokens as it has, at most.
        attention_mask: For token ids: 0 at padding, 1 elsewhere.
        config: The options of the decode.
        cache: Which columns to recompute at each forward.
        verifier: Runs the forwards of a round, and may decide in the sampler's place.
        blocks: Which positions are open, as in `decode`.
        observers: Called after each round with a `StepEvent`.
        streamer: A streamer of transformers, such as `TextStreamer`, for a single input. It is
            given the prompt first, as transformers does (`skip_prompt=True` hides the prompt), and
            then the committed tokens that no mask precedes.
        constraint: The texts that the answer may be: `Regex`, `JsonSchema` or `OneOf`; for all
            inputs, or a list with one for each, `None` for any text. See docs/structured.md.
        stop_strings: Texts that end an answer; they and the text after them are not returned.
        num_return_sequences: Answers to each input, one after the other in the output; their noise
            differs as that of equal inputs does. At temperature 0 the answers are equal unless the
            sampler draws its order.
        seeds: A seed for each answer, in place of the option `seed`, so that an answer depends on
            its input and seed alone, not on its place among the inputs.
        return_logprobs: Fill `Answer.commits` and `decoded.commits`: for each token the step that
            committed the token, and its log-probability as drawn and in the model.
        num_rows: Answers that are decoded together, at most.
        progress: Show on standard error how many answers and tokens are done.
        **options: Fields of `DecodeConfig`, which override `config`; also by the names that
            transformers has for them, see `GenerateOptions`.

    Returns:
        `num_return_sequences` answers for each input, in order, and the decode that gave them.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If the arguments do not fit together; the message names those that do not.
        RuntimeError: If a plug-in or the model breaks its contract.
    """
    inputs, strings, overrides = by_our_names(inputs, stop_strings, config, options)
    require_seeds(seeds, config, overrides)
    require_tokenizer(tokenizer)
    require_integer("num_return_sequences", num_return_sequences, least=1)
    require_model(model)
    require_observers(observers)
    blanks, config = with_blanks(tokenizer, model, templates, config, overrides)
    decoder = decoder_of_texts(
        model, tokenizer, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config,
        return_logprobs=return_logprobs,
    )  # fmt: skip
    if inputs is None and blanks:
        prompts: list[Prompt] = [start_ids(tokenizer)] * len(blanks)
    else:
        prompts = prompt_ids(tokenizer, inputs, attention_mask, chat=chat)
    requests = requests_of_texts(
        decoder, tokenizer, prompts, blanks, constraint=constraint, stop_strings=strings,
        copies=num_return_sequences,
        # One more than fits shows that there are too many.
        seeds=list(islice(seeds, len(prompts) * num_return_sequences + 1)),
    )  # fmt: skip
    stream = None if streamer is None else answer_stream(streamer, requests)
    with _progress(len(requests)) if progress else nullcontext() as bar:
        watching = [observer for observer in (*observers, stream, bar) if observer is not None]
        ended = raise_errors(run(decoder, RequestQueue(requests), num_rows, watching))
        decoded = gather_outputs(_of_one_length(ended, config.gen_length))
    answers = [
        answer_of(tokenizer, request, decoded, row, strings) for row, request in enumerate(requests)
    ]
    if stream is not None:
        stream.close(answers[0].token_ids)
    if num_return_sequences > 1 and config.temperature == 0.0 and not decoder.starts_as_noise:
        _warn_of_copies(decoded, num_return_sequences)
    return GenerateOutput(answers, decoded)


def decoder_of_texts(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    sampler: Sampler | None,
    *,
    cache: CachePolicy,
    verifier: Verifier,
    blocks: BlockSchedule,
    config: DecodeConfig,
    return_logprobs: bool = False,
) -> Decoder:
    """Returns a decoder of the arguments of `generate`, whose plug-ins know the tokenizer.

    Raises:
        ValueError: If the arguments do not fit together.
    """
    sampler = default_sampler(model) if sampler is None else sampler
    require_plugins(model, sampler, cache, verifier, blocks)
    return new_decoder(
        model, sampler.with_tokenizer(tokenizer), cache=cache, verifier=verifier,
        blocks=blocks.with_tokenizer(tokenizer), config=config, return_logprobs=return_logprobs,
    )  # fmt: skip


def _progress(num_answers: int) -> AbstractContextManager[Observer]:
    """Returns a progress bar; its library is imported only here, because this takes a moment."""
    from dllm_decode.text.answer_progress import AnswerProgress

    return AnswerProgress(num_answers)


def compiled(decoder: Decoder, tokenizer: Any, constraint: object) -> Automaton | None:
    """Returns a constraint as the tokens of a decoder's model spell it; `None` stays `None`.

    Raises:
        ValueError: If the argument is no constraint, or the tokens cannot spell it.
    """
    if constraint is None:
        return None
    if not isinstance(constraint, constraints.Constraint):
        raise ValueError(
            'constraint must be Regex("..."), JsonSchema({...}) or OneOf(["yes", "no"]), got '
            f"{shown(constraint)}."
        )
    model = decoder.model
    vocabulary = constraints.read_vocabulary(
        tokenizer, model.vocab_size, model.eos_ids, decoder.banned_ids
    )
    return constraints.compile_constraint(constraint, vocabulary)


def requests_of_texts(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    blanks: Sequence[Sequence[int]],
    *,
    constraint: object,
    stop_strings: tuple[str, ...],
    copies: int,
    seeds: Sequence[int] = (),
) -> list[Request]:
    """Returns `copies` requests for each prompt, in turn; the arguments are those of `generate`."""
    require_one_each(len(prompts), templates=blanks)
    require_one_each(len(prompts) * copies, seeds=seeds)
    automata: list[Automaton | None]
    if isinstance(constraint, Sequence) and not isinstance(constraint, str):
        require_one_each(len(prompts), constraint=constraint)
        automata = [compiled(decoder, tokenizer, entry) for entry in constraint]
    else:
        automata = [compiled(decoder, tokenizer, constraint)] * len(prompts)
    stop: StopRule = StopStrings(tokenizer, stop_strings) if stop_strings else NeverStop()
    return list(
        requests_of(
            decoder, _repeated(prompts, copies), _repeated(blanks, copies), stop,
            constraint=_repeated(automata, copies), seeds=seeds, fills_blanks=True,
        )
    )  # fmt: skip


def _repeated(values: Sequence[T], copies: int) -> list[T]:
    """Returns each value `copies` times, one after the other."""
    return [value for value in values for _ in range(copies)]


def with_blanks(
    tokenizer: Tokenizer,
    model: MaskPredictor,
    templates: str | Sequence[str],
    config: DecodeConfig,
    options: DecodeOptions,
) -> tuple[list[list[int]], DecodeConfig]:
    """Returns the tokens of templates, and the config with options and the longest one's length.

    Raises:
        ValueError: If there is no such template, or the options do not fit the templates.
    """
    require_templates(templates)
    texts = [templates] if isinstance(templates, str) else templates
    blanks = [template_ids(tokenizer, text, model) for text in texts]
    config = config.updated(**options)
    if not blanks:
        return blanks, config
    check_config(model, config, blanks)
    if config.gen_length != DecodeConfig.gen_length:
        options = {**options, "gen_length": config.gen_length}
    return blanks, config.updated(**filling_options(max(blanks, key=len), options))


def _of_one_length(answers: Iterator[Ended], length: int) -> Iterator[Ended]:
    """Pads answers to shorter templates with EOS, so that all have one length."""
    for answer in answers:
        output = answer.output
        missing = length - output.tokens.shape[1]
        if missing:
            output = replace(
                output,
                tokens=pad(output.tokens, (0, missing), value=output.eos_ids[0]),
                unsettled=pad(output.unsettled, (0, missing), value=True),
                commits=None if output.commits is None else output.commits.padded(missing),
            )
        yield replace(answer, output=output)


def _warn_of_copies(decoded: DecodeOutput, num_copies: int) -> None:
    """Warns if several answers to each input were asked for, and all of them are equal."""
    copies = decoded.tokens.unflatten(0, (-1, num_copies))
    if (copies == copies[:, :1]).all():
        warnings.warn(
            f"The {num_copies} answers to each input are equal. At temperature=0 only rules that "
            'draw give several, such as FixedSchedule(8, order="random"); pass a temperature, such '
            "as 0.7.",
            stacklevel=3,
        )

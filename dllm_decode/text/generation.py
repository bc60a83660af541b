"""Texts, chats or token ids in, texts out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Unpack

from torch.nn.functional import pad

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.observers import Observer
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.prompts import Array, Prompt
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.engine.compatibility import require_model
from dllm_decode.engine.decoding import gather_outputs, raise_errors
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.engine.loop import require_observers, run
from dllm_decode.engine.make_requests import require_seeds
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from dllm_decode.text import constraints
from dllm_decode.text.answers import GenerateOutput, answer_of
from dllm_decode.text.blanks import start_ids
from dllm_decode.text.generate_options import GenerateOptions, read_options
from dllm_decode.text.streamer import PrefixStreamer, answer_stream
from dllm_decode.text.text_requests import decoder_of_texts, read_templates, requests_of_texts
from dllm_decode.text.tokenization import ChatMode, Inputs, Tokenizer, prompt_ids, require_tokenizer
from samplers.base import Sampler
from samplers.checks import require_integer


def generate(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    inputs: Inputs | None = None,
    sampler: Sampler | None = None,
    *,
    chat: ChatMode = "auto",
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
        templates: For each input, the answer with blanks: `[MASK:12]` is a blank of twelve tokens,
            `[MASK]`, or the tokenizer's own mask token, of one. The answer is as long as the
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
    inputs, strings, overrides = read_options(inputs, stop_strings, config, options)
    require_seeds(seeds, config, overrides)
    require_tokenizer(tokenizer)
    require_integer("num_return_sequences", num_return_sequences, least=1)
    require_model(model)
    require_observers(observers)
    template_tokens, config = read_templates(tokenizer, model, templates, config, overrides)
    decoder = decoder_of_texts(
        model, tokenizer, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config,
        return_logprobs=return_logprobs,
    )  # fmt: skip
    if inputs is None and template_tokens:
        prompts: list[Prompt] = [start_ids(tokenizer)] * len(template_tokens)
    else:
        prompts = prompt_ids(tokenizer, inputs, attention_mask, chat=chat)
    requests = requests_of_texts(
        decoder, tokenizer, prompts, template_tokens, constraint=constraint,
        stop_strings=strings, copies=num_return_sequences,
        seeds=seeds,
    )  # fmt: skip
    stream = None if streamer is None else answer_stream(streamer, requests)
    with _progress(len(requests)) if progress else nullcontext() as bar:
        watching = [observer for observer in (*observers, stream, bar) if observer is not None]
        ended = raise_errors(run(decoder, RequestQueue(requests), num_rows, watching))
        decoded = gather_outputs(_pad_answers(ended, config.gen_length))
    answers = [
        answer_of(tokenizer, request, decoded, row, strings) for row, request in enumerate(requests)
    ]
    if stream is not None:
        stream.close(answers[0].token_ids)
    if num_return_sequences > 1 and config.temperature == 0.0 and not decoder.is_uniform_state:
        _warn_of_copies(decoded, num_return_sequences)
    return GenerateOutput(answers, decoded)


def _progress(num_answers: int) -> AbstractContextManager[Observer]:
    """Returns a progress bar; its library is imported only here, because this takes a moment."""
    from dllm_decode.text.answer_progress import AnswerProgress

    return AnswerProgress(num_answers)


def _pad_answers(ended: Iterator[EndedRequest], length: int) -> Iterator[EndedRequest]:
    """Pads answers to shorter templates with EOS, so that all have one length."""
    for request in ended:
        output = request.output
        missing = length - output.tokens.shape[1]
        if missing:
            output = replace(
                output,
                tokens=pad(output.tokens, (0, missing), value=output.eos_ids[0]),
                unsettled=pad(output.unsettled, (0, missing), value=True),
                commits=None if output.commits is None else output.commits.padded(missing),
            )
        yield replace(request, output=output)


def _warn_of_copies(decoded: DecodeOutput, num_copies: int) -> None:
    """Warns if several answers to each input were asked for, and all of them are equal."""
    copies = decoded.tokens.unflatten(0, (-1, num_copies))
    if (copies == copies[:, :1]).all():
        warn_user(
            f"The {num_copies} answers to each input are equal. At temperature=0 only rules that "
            'draw give several, such as FixedSchedule(8, order="random"); pass a temperature, such '
            "as 0.7."
        )

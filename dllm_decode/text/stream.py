"""An answer as an iterator of its text, piece by piece."""

from collections.abc import Iterator, Sequence
from typing import Unpack

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.output import final_tokens
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.core.stopping import stop_rule
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import raise_errors
from dllm_decode.engine.loop import rounds
from dllm_decode.engine.make_requests import requests_of
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from dllm_decode.text.answers import answer_of
from dllm_decode.text.generate_options import GenerateOptions, read_options
from dllm_decode.text.prose import Prose
from dllm_decode.text.text_requests import decoder_of_texts
from dllm_decode.text.tokenization import ChatMode, Inputs, Tokenizer, prompt_ids, require_tokenizer
from samplers.base import Sampler


def stream(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    inputs: Inputs | None = None,
    sampler: Sampler | None = None,
    *,
    chat: ChatMode = "auto",
    config: DecodeConfig = DecodeConfig(),
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    stop_strings: str | Sequence[str] = (),
    **options: Unpack[GenerateOptions],
) -> Iterator[str]:
    """Returns an iterator over the text of one answer; it decodes while you iterate.

        for piece in stream(model, tokenizer, question):
            print(piece, end="", flush=True)

    A piece is new text that will not change, and that no unsettled position precedes.
    All pieces together are the text that `generate` returns. Leave the loop to stop the decode.

    Args:
        model: As in `generate`, like all arguments below.
        tokenizer: The model's tokenizer.
        inputs: One text, chat or prompt.
        sampler: Which positions to commit, and with which token.
        chat: How a text is read.
        config: The options of the decode.
        cache: Which columns to recompute at each forward.
        verifier: Runs the forwards of a round.
        blocks: Which positions are open.
        stop_strings: Texts that end the answer.
        **options: Fields of `DecodeConfig`, or names that transformers has for them.

    Raises:
        ValueError: If the arguments do not fit together, or there are several inputs.
    """
    inputs, strings, updates = read_options(inputs, stop_strings, config, options)
    require_tokenizer(tokenizer)
    decoder = decoder_of_texts(
        model, tokenizer, sampler, cache=cache, verifier=verifier, blocks=blocks,
        config=config.updated(**updates),
    )  # fmt: skip
    prompts = prompt_ids(tokenizer, inputs, chat=chat)
    if len(prompts) != 1:
        raise ValueError(f"stream must be given one input, got {len(prompts)}.")
    (request,) = requests_of(decoder, prompts, (), stop_rule(tokenizer, strings))
    return _pieces(decoder, request, tokenizer, strings)


def _pieces(
    decoder: Decoder, request: Request, tokenizer: Tokenizer, strings: Sequence[str]
) -> Iterator[str]:
    prose = Prose(tokenizer, strings)
    final_ids: list[int] = []

    def watch(event: StepEvent) -> None:
        final_ids[:] = final_tokens(event.rows, event.after, is_final=event.is_final)[0]

    for answers in rounds(decoder, RequestQueue([request]), 1, [watch]):
        for ended in raise_errors(iter(answers)):
            final_ids[:] = answer_of(tokenizer, request, ended.output, 0, strings).token_ids
        piece = prose.rest(final_ids) if answers else prose.more(final_ids)
        if piece:
            yield piece

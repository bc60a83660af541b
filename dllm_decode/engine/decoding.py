"""`decode` and `decode_many`: the loop for callers who have all prompts."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Unpack

from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor, fingerprint_of
from dllm_decode.core.observers import Observer
from dllm_decode.core.options import DecodeConfig, DecodeOptions, require_config
from dllm_decode.core.output import DecodeOutput, join_outputs
from dllm_decode.core.prompts import (
    Array,
    Prompt,
    Prompts,
    require_one_each,
    require_templates,
    token_lists,
)
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.stopping import NeverStop, StopRule
from dllm_decode.engine import compatibility
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.engine.loop import run
from dllm_decode.engine.make_requests import (
    Constraining,
    requests_of,
    require_seeds,
)
from dllm_decode.engine.no_verifier import NoVerifier
from dllm_decode.engine.verifier import Verifier
from samplers.base import Sampler
from samplers.checks import require_integer


def decode(
    model: MaskPredictor,
    prompts: Prompts,
    sampler: Sampler,
    *,
    attention_mask: Int[Tensor, "B N"] | None = None,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    templates: Sequence[Sequence[int]] = (),
    constraint: Constraining = None,
    observers: Sequence[Observer] = (),
    stop: StopRule = NeverStop(),
    return_logprobs: bool = False,
    config: DecodeConfig = DecodeConfig(),
    **options: Unpack[DecodeOptions],
) -> DecodeOutput:
    """Fills the answers to a batch of prompts by iterative unmasking.

    The answer is decoded block by block, left to right, unless `blocks` opens several at once. In
    each round `verifier` runs the model, as a rule once, and `sampler` decides which positions to
    commit. Each row is in its own block.

    Args:
        model: The mask predictor, see `MaskPredictor`.
        prompts: Token ids, one sequence per row; lengths may differ. Also a tensor with its
            `attention_mask`, or the output of a tokenizer of transformers.
        sampler: Which positions to commit, and with which token.
        attention_mask: For prompts in a tensor: 0 at padding, 1 elsewhere.
        cache: Which columns to recompute at each forward. Every choice but `NoCache` approximates.
        verifier: Runs the forwards of a round, and may decide in the sampler's place. `NoVerifier`
            runs one.
        blocks: Which positions are open: one block after another, or several blocks at once.
        templates: Answers with some tokens given: per row, token ids with the model's `mask_id` at
            the blanks. Given tokens are never changed.
        constraint: The texts that an answer may be, as `compile_constraint` returns them: for all
            prompts, or a list with one entry for each prompt, `None` for any text.
        observers: Called after each round with a `StepEvent`; for traces, streaming, progress bars.
        stop: Ends answers early, in addition to an EOS.
        return_logprobs: Fill `DecodeOutput.commits`.
        config: The options.
        options: Fields of `DecodeConfig`, which override `config`.

    Returns:
        The answers, a row for each prompt, and their cost.

    Raises:
        ValueError: If sampler, cache, verifier, blocks, model and lengths do not fit together.
        RuntimeError: If the sampler settles nothing in a step, takes more steps than it promises,
            or another plug-in breaks its contract.
    """
    require_config(config)
    require_templates(templates)
    decoder = new_decoder(
        model, sampler, cache=cache, verifier=verifier, blocks=blocks,
        config=config.updated(**options), return_logprobs=return_logprobs,
    )  # fmt: skip
    prompt_ids = token_lists(prompts, attention_mask)
    if not prompt_ids:
        raise ValueError("decode needs at least one prompt, got none.")
    require_one_each(len(prompt_ids), templates=templates, constraint=constraint)
    requests = requests_of(decoder, prompt_ids, templates, stop, constraint=constraint)
    ended = run(decoder, RequestQueue(requests), len(prompt_ids), observers)
    return gather_outputs(raise_errors(ended))


def decode_many(  # noqa: D417 - arguments that are not listed are described in `decode`
    model: MaskPredictor,
    prompts: Iterable[Prompt] | Prompts,
    sampler: Sampler,
    *,
    attention_mask: Int[Tensor, "B N"] | None = None,
    num_rows: int = 8,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    templates: Iterable[Sequence[int]] = (),
    seeds: Iterable[int] = (),
    constraint: Constraining = None,
    observers: Sequence[Observer] = (),
    stop: StopRule = NeverStop(),
    return_logprobs: bool = False,
    config: DecodeConfig = DecodeConfig(),
    **options: Unpack[DecodeOptions],
) -> Iterator[DecodeOutput]:
    """Decodes any number of prompts, at most `num_rows` of them at a time.

    A waiting prompt takes the place of a row whose answer has ended, in the very next round, so
    that forwards stay full if answers differ in length. The tokens of each prompt are those of
    `decode` on all prompts at once, apart from rounding, also at a temperature above 0.

    Args:
        model: As in `decode`, like all arguments that are not listed here.
        prompts: Token ids, any iterable; taken as rows become free.
        sampler: As in `decode`.
        num_rows: Rows of a forward, at most.
        templates: As in `decode`; any iterable, taken together with the prompts. With
            `()`, the default, no token is given; an iterator must yield one for each prompt.
        seeds: A seed for each prompt, in place of the option `seed`, so that an answer depends on
            its prompt and seed alone, not on its place among the prompts. Any iterable.

    Returns:
        An iterator over one output of one row for each prompt, in the order of the prompts. Its
        `wall_s` begins when the row joins, its `forwards` are those of the row.

    Raises:
        ValueError: If sampler, cache, verifier, model and lengths do not fit together; if there
            are not as many templates or seeds as prompts, at once if both have a length; or, when
            a row becomes free, if a prompt is empty or contains the mask id, or a template is too
            long.
        RuntimeError: As in `decode`, when the iterator reaches the round.
    """
    require_config(config)
    require_templates(templates)
    require_seeds(seeds, config, options)
    require_integer("num_rows", num_rows, least=1)
    if attention_mask is not None or isinstance(prompts, Array | Mapping):
        prompts = token_lists(prompts, attention_mask)  # type: ignore[arg-type]
    elif isinstance(prompts, Sequence):
        prompts = token_lists(prompts)
    if isinstance(prompts, Sized):
        require_one_each(len(prompts), templates=templates, seeds=seeds, constraint=constraint)
    decoder = new_decoder(
        model, sampler, cache=cache, verifier=verifier, blocks=blocks,
        config=config.updated(**options), return_logprobs=return_logprobs,
    )  # fmt: skip
    requests = requests_of(decoder, prompts, templates, stop, constraint=constraint, seeds=seeds)
    ended = run(decoder, RequestQueue(requests), num_rows, observers)
    return _outputs_in_order(raise_errors(ended))


def new_decoder(
    model: MaskPredictor,
    sampler: Sampler,
    *,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    config: DecodeConfig = DecodeConfig(),
    return_logprobs: bool = False,
) -> Decoder:
    """Returns a decoder whose parts are checked against each other.

    Raises:
        ValueError: If the parts do not fit together; the message names both and the remedy.
    """
    compatibility.check(model, sampler, cache, verifier=verifier, blocks=blocks)
    decoder = Decoder(model, sampler, cache, verifier, blocks, config, return_logprobs)
    sampler.check_model(model_name=model.name, fingerprint=fingerprint_of(model))
    sampler.check(
        model_name=model.name, gen_length=config.gen_length, block_length=decoder.block_length
    )
    verifier.check(model)
    blocks.check(model)
    compatibility.check_options(decoder)
    compatibility.warn_of_settings_without_effect(decoder)
    return decoder


def _outputs_in_order(ended: Iterator[EndedRequest]) -> Iterator[DecodeOutput]:
    """Returns the outputs in the order of the requests; holds those that end too early."""
    held: dict[int, DecodeOutput] = {}
    first = 0
    for request in ended:
        held[request.index] = request.output
        while first in held:
            yield held.pop(first)
            first += 1


def raise_errors(ended: Iterator[EndedRequest]) -> Iterator[EndedRequest]:
    """Yields requests as they end.

    Raises:
        RuntimeError: As soon as a request has ended with an error.
    """
    for request in ended:
        if request.error:
            raise RuntimeError(f"{request.error} (request {request.index})")
        yield request


def gather_outputs(ended: Iterator[EndedRequest]) -> DecodeOutput:
    """Gathers all answers in one output, in the order of the requests."""
    started = time.perf_counter()
    ordered = sorted(ended, key=lambda request: request.index)
    return join_outputs(
        [request.output for request in ordered],
        forwards=max(request.forwards for request in ordered),
        target_forwards=max(request.target_forwards for request in ordered),
        wall_s=time.perf_counter() - started,
    )

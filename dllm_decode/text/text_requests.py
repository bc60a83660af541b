"""Makes texts into requests of a decode, with their templates, constraints and stop strings."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dllm_decode.blocks import BlockSchedule
from dllm_decode.caches import CachePolicy
from dllm_decode.core.automaton import Automaton
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.options import DecodeConfig, DecodeOptions
from dllm_decode.core.prompts import Prompt, filling_options, require_one_each, require_templates
from dllm_decode.core.requests import Request
from dllm_decode.core.stopping import stop_rule
from dllm_decode.engine import uniform_state_checks
from dllm_decode.engine.compatibility import require_plugins
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.engine.default_sampler import default_sampler
from dllm_decode.engine.make_requests import requests_of
from dllm_decode.engine.verifier import Verifier
from dllm_decode.text import constraints
from dllm_decode.text.blanks import template_ids
from dllm_decode.text.tokenization import Tokenizer
from samplers.base import Sampler
from samplers.checks import shown

T = TypeVar("T")


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


def read_templates(
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
    token_ids = [template_ids(tokenizer, text, model) for text in texts]
    config = config.updated(**options)
    if not token_ids:
        return token_ids, config
    uniform_state_checks.check_config(model, config, token_ids)
    if config.gen_length != DecodeConfig.gen_length:
        options = {**options, "gen_length": config.gen_length}
    return token_ids, config.updated(**filling_options(max(token_ids, key=len), options))


def automaton_of(decoder: Decoder, tokenizer: Any, constraint: object) -> Automaton | None:
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
    template_tokens: Sequence[Sequence[int]],
    *,
    constraint: object,
    stop_strings: tuple[str, ...],
    copies: int,
    seeds: Iterable[int] = (),
) -> list[Request]:
    """Returns `copies` requests for each prompt, in turn; the arguments are those of `generate`."""
    require_one_each(len(prompts), templates=template_tokens)
    require_one_each(len(prompts) * copies, seeds=seeds)
    automata: list[Automaton | None]
    if isinstance(constraint, Sequence) and not isinstance(constraint, str):
        require_one_each(len(prompts), constraint=constraint)
        automata = [automaton_of(decoder, tokenizer, entry) for entry in constraint]
    else:
        automata = [automaton_of(decoder, tokenizer, constraint)] * len(prompts)
    return list(
        requests_of(
            decoder, _repeated(prompts, copies), _repeated(template_tokens, copies),
            stop_rule(tokenizer, stop_strings), constraint=_repeated(automata, copies), seeds=seeds,
            fills_blanks=True,
        )
    )  # fmt: skip


def _repeated(values: Sequence[T], copies: int) -> list[T]:
    """Returns each value `copies` times, one after the other."""
    return [value for value in values for _ in range(copies)]

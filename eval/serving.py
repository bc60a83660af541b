"""Runs `dllm-decode serve`."""

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path

from dllm_decode import DecodeConfig, load_target, new_decoder
from dllm_decode.decoder import Decoder
from dllm_decode.serve.limits import Limits
from eval.runs.command import DTYPES
from eval.runs.models import open_address, parse_model
from eval.runs.options import given_of
from eval.runs.plugins import (
    check_verifier,
    parse_blocks,
    parse_cache,
    parse_sampler,
    parse_verifier,
)
from samplers import Sampler

_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "jinja2")


def run(options: Namespace) -> int:
    """Serves a model until the process is told to end."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"serve needs {', '.join(missing)}, which are not installed: pip install '.[serve]'."
        )
    # They need the extra.
    from dllm_decode.serve.server import LOCAL, bind, serve
    from dllm_decode.serve.service import Service

    limits = Limits(**{one.name: getattr(options, one.name) for one in fields(Limits)})
    samplers = _samplers(options)
    bound = bind(options.host, options.port)
    decoders, tokenizer = _decoders(options, samplers, limits)
    name = options.served_name or Path(parse_model(options.model).source).name
    _say(
        f"{name} with {next(iter(samplers.values()))!r}, {limits.num_rows} rows of at most "
        f"{limits.max_length} tokens, {limits.max_columns} tokens together."
    )
    if options.host not in LOCAL and options.api_key is None:
        _say("Everyone who can reach this machine may use the server; --api-key asks for a key.")
    with bound:
        service = Service.start(name, tokenizer, decoders, limits)
        serve(service, bound, options.host, api_key=options.api_key, say=_say)
    return 0


def _samplers(options: Namespace) -> dict[str, Sampler]:
    """Returns the samplers that requests may name; the first is the default.

    Raises:
        ValueError: If one is mistyped.
    """
    found: dict[str, Sampler] = {"default": parse_sampler(options.sampler)}
    for written in options.allow_sampler:
        name, sign, expression = written.partition("=")
        if not sign or not name.isidentifier() or name in found:
            raise ValueError(
                f"--allow-sampler must be NAME=EXPR, with a name of its own, got {written!r}."
            )
        found[name] = parse_sampler(expression)
    return found


def _decoders(
    options: Namespace, samplers: Mapping[str, Sampler], limits: Limits
) -> tuple[dict[str, Decoder], object]:
    """Returns a decoder for each sampler, and the tokenizer."""
    # Mistyped plug-ins are refused before a model is loaded.
    cache, blocks = parse_cache(options.cache), parse_blocks(options.blocks)
    config = DecodeConfig(**{**given_of(options), "gen_length": limits.max_tokens})
    check_verifier(options.verifier)
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    dtype = DTYPES[options.dtype]
    model, tokenizer = open_address(
        options.model, device=options.device, dtype=dtype, revision=options.revision or None
    )
    # Not options.device, which may be "auto".
    target = partial(load_target, tokenizer=tokenizer, device=model.device, dtype=dtype)
    verifier = parse_verifier(options.verifier, target)
    decoders = {
        name: new_decoder(
            model, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config
        )
        for name, sampler in samplers.items()
    }
    return decoders, tokenizer


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

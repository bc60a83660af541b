"""Runs `dllm-decode serve`; wrong options are refused before torch is loaded."""

import importlib.util
import logging
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from dllm_decode.serve.limits import Limits
from dllm_decode.serve.sockets import LOCAL, bind
from dllm_decode.settings.addresses import parse_model
from dllm_decode.settings.known import require_known_plugins

if TYPE_CHECKING:
    from dllm_decode.cli.model_setup import ModelSetup
    from dllm_decode.engine.decoder import Decoder
    from dllm_decode.serve.service import Service
    from samplers import Sampler

_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "jinja2")


def run(options: Namespace) -> int:
    """Serves a model until the process is told to end."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"serve needs {', '.join(missing)}, which are not installed: pip install '.[serve]'."
        )
    limits = Limits(**{field.name: getattr(options, field.name) for field in fields(Limits)})
    expressions = _other_samplers(options)
    root = None if options.weights_root is None else Path(options.weights_root)
    if root is not None and not root.is_dir():
        raise ValueError(f"--weights-root must be a folder, got {options.weights_root!r}.")
    with bind(options.host, options.port) as bound:
        # These modules need the extra `serve`, and load torch.
        from dllm_decode.cli.model_setup import load_setup
        from dllm_decode.serve.api import require_key
        from dllm_decode.serve.message_readers import Parsers
        from dllm_decode.serve.server import serve
        from dllm_decode.serve.service import Service
        from dllm_decode.serve.warm_up import warm_up
        from dllm_decode.settings.plugins import parse
        from samplers import Sampler

        if root is not None:
            require_key(options.api_key)
        others = {name: parse(text, Sampler) for name, text in expressions.items()}
        setup = load_setup(options, gen_length=limits.max_tokens)
        decoders = _decoders_of(setup, others, options)
        warm_up(decoders["default"], limits, _say)
        name = options.served_name or Path(parse_model(options.model).source).name
        parsers = Parsers(options.tool_call_parser, options.reasoning_parser)
        service = Service.start(name, setup.tokenizer, decoders, limits, parsers)
        _announce(service, setup, options)
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("dllm_decode.serve").setLevel("WARNING" if options.quiet else "INFO")
        serve(service, bound, options.host, api_key=options.api_key, weights_root=root, say=_say)
    return 0


def _other_samplers(options: Namespace) -> dict[str, str]:
    """Returns the expressions of samplers that requests may name besides "default"."""
    samplers: dict[str, str] = {}
    for text in options.allow_sampler:
        name, sign, expression = text.partition("=")
        if not sign or not name.isidentifier() or name in {"default", *samplers}:
            raise ValueError(
                f"--allow-sampler must be NAME=EXPR, with a name of its own, got {text!r}."
            )
        require_known_plugins("sampler", expression)
        samplers[name] = expression
    return samplers


def _decoders_of(
    setup: "ModelSetup", others: Mapping[str, "Sampler"], options: Namespace
) -> dict[str, "Decoder"]:
    """Returns a decoder for each sampler by name, "default" first.

    Raises ValueError if samplers are allowed with a verifier that asks none.
    """
    if others and not setup.verifier.asks_sampler:
        raise ValueError(
            "--allow-sampler must be left out with a verifier that never asks a sampler, got "
            f"{', '.join(others)} and {options.verifier}."
        )
    samplers = {"default": setup.sampler, **others}
    return {name: setup.decoder(sampler, setup.config) for name, sampler in samplers.items()}


def _announce(service: "Service", setup: "ModelSetup", options: Namespace) -> None:
    """Says which model is served, how, and whether everybody may use the server."""
    deciding = [setup.sampler] if setup.verifier.asks_sampler else []
    plugins = ", ".join(map(repr, [*deciding, *service.chosen_plugins.values()]))
    rows = f"{service.limits.num_rows} rows of at most {service.max_length} tokens"
    _say(f"{service.name} with {plugins}, {rows}.")
    if options.host not in LOCAL and options.api_key is None:
        _say("Everyone who can reach this machine may use the server; --api-key asks for a key.")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

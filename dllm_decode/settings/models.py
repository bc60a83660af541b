"""Opens the model that an address names."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dllm_decode import CausalTarget, MaskPredictor, load_model, load_target
from dllm_decode.models.loading.load import LoadedModel
from dllm_decode.models.targets.causal_only import CausalOnly
from dllm_decode.settings.addresses import parse_model
from dllm_decode.settings.plugins import no_target
from dllm_decode.settings.ranks import ProcessRank


class Loaded(NamedTuple):
    """A model that is ready to answer.

    Attributes:
        dtype: Name of the dtype of the parameters.
        target: Loads a verifier's causal model.
        files: Files that the model was read from.
        source: The model's name in the settings.
    """

    model: MaskPredictor
    tokenizer: Any
    dtype: str
    target: Callable[[str], CausalTarget] = no_target
    files: tuple[Path, ...] = ()
    source: str = ""
    revision: str = ""


def open_model(source: str, options: argparse.Namespace, revision: str = "") -> Loaded:
    """Sets the number of threads, and loads a model as `load` does."""
    if options.threads:
        torch.set_num_threads(options.threads)
    return load(
        source, device=options.device, dtype=options.dtype, compile=bool(options.compile),
        graphs=bool(options.graphs), revision=revision,
    )  # fmt: skip


def load(
    source: str, *, device: str | None = "cpu", dtype: str | None = None, compile: bool = False,
    graphs: bool = False, revision: str = "", needs_tokenizer: bool = True,
) -> Loaded:  # fmt: skip
    """Loads the model of an address, as `load_model` does; "cuda" is the process's own GPU."""
    own_device = f"cuda:{ProcessRank.of_launch().local_rank}" if device == "cuda" else device
    loaded: tuple[LoadedModel, Any] = load_model(
        **asdict(parse_model(source)), device=own_device, dtype=dtype, compile=compile,
        graphs=graphs, revision=revision or None,
        tokenizer="required" if needs_tokenizer else "optional",
    )  # fmt: skip
    model, tokenizer = loaded
    target_dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        dtype=str(model.dtype).removeprefix("torch."),
        # All runs with the same target share it; its device is not `device`, which may be "auto".
        target=lru_cache(
            lambda name: (
                model.target
                if isinstance(model, CausalOnly) and name == model.name
                else load_target(name, tokenizer, device=model.device, dtype=target_dtype)
            )
        ),
        files=model.files,
        source=source,
        revision=revision,
    )

"""Models of the command line."""

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dllm_decode import (
    CausalTarget,
    MaskPredictor,
    load_model,
    load_target,
)
from dllm_decode.cli.plugins import no_target, parse_model
from dllm_decode.models.loading.load import LoadedModel

_LAUNCH_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
}


@dataclass(frozen=True)
class Place:
    """Which of several processes this is; `local_rank` is among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @staticmethod
    def of_launch() -> "Place":
        """Reads what `accelerate launch`, `torchrun` or `mpirun` tells each of its processes.

        Raises ValueError if the rank is not below the number of processes.
        """
        found = {}
        for field_name, variables in _LAUNCH_VARIABLES.items():
            told = [os.environ[name] for name in variables if name in os.environ]
            if told:
                found[field_name] = int(told[0])
        place = Place(**found)
        if not 0 <= place.rank < place.world_size:
            raise ValueError(
                "The environment must give the rank of a process below the number of processes, "
                f"got rank {place.rank} of {place.world_size}. Unset RANK, or set WORLD_SIZE too."
            )
        return place


class Loaded(NamedTuple):
    """A model that is ready to answer.

    Attributes:
        dtype: Of its parameters.
        target: Loads a verifier's causal model.
        files: Files that the model was read from.
        source: Its name in the settings.
    """

    model: MaskPredictor
    tokenizer: Any
    dtype: str
    target: Callable[[str], CausalTarget] = no_target
    files: tuple[Path, ...] = ()
    source: str = ""
    revision: str = ""


def open_model(
    source: str, options: argparse.Namespace, revision: str = "", *, needs_tokenizer: bool = True
) -> Loaded:
    """Sets the number of threads, and loads a model as `load` does."""
    if options.threads:
        torch.set_num_threads(options.threads)
    return load(
        source, device=options.device, dtype=options.dtype, revision=revision,
        needs_tokenizer=needs_tokenizer,
    )  # fmt: skip


def load(
    source: str, *, device: str | None = "cpu", dtype: str | None = None, revision: str = "",
    needs_tokenizer: bool = True,
) -> Loaded:  # fmt: skip
    """Loads the model of an address as `load_model` does; each process has its own "cuda"."""
    own = f"cuda:{Place.of_launch().local_rank}" if device == "cuda" else device
    found: tuple[LoadedModel, Any] = load_model(
        **asdict(parse_model(source)), device=own, dtype=dtype, revision=revision or None,
        tokenizer="required" if needs_tokenizer else "optional",
    )  # fmt: skip
    model, tokenizer = found
    wanted: torch.dtype | None = getattr(torch, dtype) if dtype else None
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        dtype=str(model.dtype).removeprefix("torch."),
        # Once for all runs that name the same target; not on `device`, which may be "auto".
        target=lru_cache(
            lambda name: load_target(name, tokenizer, device=model.device, dtype=wanted)
        ),
        files=model.files,
        source=source,
        revision=revision,
    )

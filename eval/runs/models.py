"""Models by text, as the command line, sweep files and records name them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from dllm_decode import load_model
from dllm_decode.models.loading.load import LoadedModel
from eval.runs.addresses import construct, split_address

DTYPES: Mapping[str | None, torch.dtype | None] = {
    None: None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16
}  # fmt: skip
_EXAMPLE = "path/to/open-dcoder?family=open_dllm&mask_id=151665"


@dataclass(frozen=True)
class ModelAddress:
    """A model, and what its files do not say.

    `source` is an embedded name, folder or hub id; the others are as in `load_model`.
    """

    source: str
    family: str | None = None
    mask_id: int | None = None
    block_length: int | None = None
    adapter: str | None = None
    quantize: str | None = None

    @property
    def own_module(self) -> str | None:
        """The module of a family of the user's own."""
        module, colon, _ = (self.family or "").partition(":")
        return module if colon else None


def parse_model(address: str) -> ModelAddress:
    """Reads an address such as `path/to/open-dcoder?family=open_dllm&mask_id=151665`.

    Raises ValueError if it has an option that a model does not have.
    """
    # A folder may have a question mark in its name.
    if "?" not in address or Path(address).is_dir():
        return ModelAddress(address)
    source, options = split_address(address, _EXAMPLE)
    found: ModelAddress = construct("A model", partial(ModelAddress, source), options)
    return found


def open_address(
    address: str,
    *,
    device: str | None = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    tokenizer: Literal["required", "optional"] = "required",
) -> tuple[LoadedModel, Any]:
    """Loads the model of an address; the other arguments and the errors are `load_model`'s."""
    return load_model(
        **asdict(parse_model(address)),
        device=device,
        dtype=dtype,
        revision=revision,
        tokenizer=tokenizer,
    )

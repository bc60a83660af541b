"""Writes a trained model of any family beside the files of the checkpoint it came from."""

import shutil
from pathlib import Path

import torch

from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family, family_of
from dllm_decode.models.loading.export import MAX_SHARD_BYTES, write_weights
from dllm_decode.models.loading.weights import read_json

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_OTHERS = (
    "config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer*", "vocab.json", "merges.txt", "chat_template*",
)  # fmt: skip


def read_family(folder: Path, family: str | None = None) -> Family:
    """Returns the family of a checkpoint's folder, ValueError if it is of none."""
    path = folder / "config.json"
    return family_of(read_json(path), family, file=repr(str(path)))


def save_like(
    model: MaskedTransformer,
    source: Path,
    folder: Path,
    *,
    family: Family,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a model in its family's own format: configuration and tokenizer are the source's.

    Args:
        model: The trained model, of the sizes of the source.
        source: Folder of the checkpoint that it was loaded from.
        folder: Made if need be; weights in it are replaced.
        family: Of the checkpoint.
        dtype: Of the weights on disk; `None`: the model's.
        max_shard_bytes: As in `save_model`.

    Raises:
        ValueError: If the folder is the source.
    """
    if folder.resolve() == source.resolve():
        raise ValueError(
            f"A trained model must go to a folder of its own, got that of the model it came from, "
            f"{str(folder)!r}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        stale.unlink()
    for other in (path for pattern in _OTHERS for path in source.glob(pattern)):
        shutil.copyfile(other, folder / other.name)
    # Weights that a family keeps in another dtype than the model's stay in it.
    tensors = {
        name: (tensor, dtype if dtype and tensor.dtype == model.dtype else tensor.dtype)
        for name, tensor in family.tensors(model.transformer).items()
    }
    write_weights(tensors, folder, max_shard_bytes=max_shard_bytes)

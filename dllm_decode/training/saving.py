"""Writes a trained model of any family beside the files of the checkpoint it came from."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family, family_of
from dllm_decode.models.loading.weights import read_json

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_OTHERS = (
    "config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer*", "vocab.json", "merges.txt", "chat_template*",
)  # fmt: skip
MAX_SHARD_BYTES = 5 * 10**9


def read_family(folder: Path, family: str | None = None) -> Family:
    """Returns the family of a checkpoint's folder; `family` as in `load_model`.

    Raises:
        ValueError: If it is of none.
    """
    return family_of(read_json(folder / "config.json"), family)


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
        dtype: Of the weights on disk; `None`: the model's. What a family keeps in another one
            stays so.
        max_shard_bytes: Weights beyond this are spread over several files; a tensor is never split.

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
    shards = list(_shards(family.tensors(model.transformer), max_shard_bytes))
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, start=1):
        name = (
            f"model-{i:05}-of-{len(shards):05}.safetensors" if shards[1:] else "model.safetensors"
        )
        copies = {
            key: _on_disk(tensor, model.dtype, dtype or model.dtype)
            for key, tensor in shard.items()
        }
        save_file(copies, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    if shards[1:]:
        index = {"metadata": {}, "weight_map": weight_map}
        text = json.dumps(index, indent=1) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _on_disk(tensor: Tensor, trained: torch.dtype, wished: torch.dtype) -> Tensor:
    # Parts of fused projections share storage, which safetensors refuses: hence the copy.
    kept = wished if tensor.dtype == trained else tensor.dtype
    return tensor.detach().to("cpu", kept, copy=True).contiguous()


def _shards(tensors: dict[str, Tensor], max_shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        if shard and size_bytes + tensor.nbytes > max_shard_bytes:
            yield shard
            shard, size_bytes = {}, 0
        shard[name] = tensor
        size_bytes += tensor.nbytes
    yield shard

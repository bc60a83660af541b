"""The weight files of a checkpoint: safetensors, checked before anything is allocated."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dllm_decode.models.families import Family
from dllm_decode.models.loading.json_files import read_json, refuse_pointer
from dllm_decode.models.loading.stored_formats import AS_TRAINED, FLOATS, Header, StoredFormat
from dllm_decode.models.network.transformer import Transformer

INDEX = "model.safetensors.index.json"
_BESIDE_WEIGHTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
# Differences that an error names.
_MOST_NAMED = 40


def weight_files(folder: Path) -> list[Path]:
    """Lists the safetensors files of a checkpoint; warns if a single file hides shards.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If the index is damaged.
    """
    index, single = folder / INDEX, "model.safetensors"
    shards = shards_of(index) if index.is_file() else {single}
    if single not in shards and (folder / single).is_file():
        # As transformers does.
        logging.getLogger("dllm_decode").warning(
            "%r holds weights twice: %s is read, and not the files that %s names. Remove those "
            "that are stale.", str(folder), single, index.name,
        )  # fmt: skip
        shards = {single}
    files = [folder / name for name in sorted(shards)]
    absent = [path.name for path in files if not path.is_file()]
    if not absent:
        return files
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled and not index.is_file():
        raise FileNotFoundError(
            f"Weights are read from safetensors files only, got {', '.join(pickled)} in "
            f"{str(folder)!r}. Convert them with safetensors.torch.save_file, or choose a revision "
            "that has safetensors."
        )
    raise FileNotFoundError(
        f"The weight files {', '.join(absent)} are missing in {str(folder)!r}. "
        "Download the whole repository."
    )


def model_files(folder: Path) -> tuple[Path, ...]:
    """Lists the files of a checkpoint that are read and so decide its answers; weights are last."""
    others = (folder / name for name in _BESIDE_WEIGHTS)
    return (*(path for path in others if path.is_file()), *weight_files(folder))


def shards_of(index: Path) -> set[str]:
    """Returns the names of the files that an index has; ValueError if it is damaged."""
    weight_map = read_json(index).get("weight_map")
    places = weight_map if isinstance(weight_map, dict) else {}
    if not places or any(not _is_file_name(place) for place in places.values()):
        raise ValueError(
            f"{str(index)!r}: 'weight_map' must say in which file of this folder each tensor is, "
            f"got {str(weight_map)[:80]}. Download it again."
        )
    return set(places.values())


def _is_file_name(place: object) -> bool:
    return isinstance(place, str) and place != "" and Path(place).name == place


def open_weights(path: Path) -> Any:
    """Opens a safetensors file; ValueError if it is damaged."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        refuse_pointer(path)
        raise ValueError(
            f"{str(path)!r} is damaged or cut short ({error}). Download the file again."
        ) from error


def write_weights(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file; OSError if that fails."""
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from None


def check_weights(
    transformer: Transformer, family: Family, files: list[Path], stored: StoredFormat = AS_TRAINED
) -> torch.dtype:
    """Returns the embedding's dtype, ValueError if the files' headers differ from the network.

    Quantised weights, which are `stored` in some format, become bfloat16, and so does the rest.
    """
    expected = {name: list(part.shape) for name, part in family.tensors(transformer).items()}
    headers = _headers(files, stored)
    if transformer.config.tied_head:
        _take_tied_head(family, files, headers)
    problems = [f"missing {name}" for name in expected if name not in headers]
    problems += [f"left over {name}" for name in headers if name not in expected]
    problems += [
        f"{name} of shape {headers[name].shape} instead of {shape}"
        for name, shape in expected.items()
        if name in headers and headers[name].shape != shape
    ]
    if problems:
        listed = "; ".join(problems[:_MOST_NAMED])
        more = "" if len(problems) <= _MOST_NAMED else f"; and {len(problems) - _MOST_NAMED} more"
        raise ValueError(
            f"The weight files must hold exactly the tensors that config.json calls for, got "
            f"{len(problems)} differences: {listed}{more}. "
            f"Check that the files in {str(files[0].parent)!r} are of one model, and complete."
        )
    if stored is not AS_TRAINED:
        return torch.bfloat16
    return FLOATS[headers[family.names["embedding.weight"]].dtype]


def _take_tied_head(family: Family, files: list[Path], headers: dict[str, Header]) -> None:
    """Removes a stored tied head from the headers; ValueError if it is not the embedding."""
    embedding, head = (family.names.get(f"{part}.weight") for part in ("embedding", "head"))
    if head not in headers or embedding not in headers:
        return
    del headers[head]
    if not torch.equal(_read(embedding, files), _read(head, files)):
        raise ValueError(
            f"config.json says that the head is the embedding, so {head} must equal {embedding}, "
            f"got others in {str(files[0].parent)!r}. Correct config.json, or remove {head}."
        )


def _read(name: str, files: list[Path]) -> Tensor:
    for path in files:
        with open_weights(path) as opened:
            if name in opened.keys():  # noqa: SIM118 - it is no dict
                tensor: Tensor = opened.get_tensor(name)
                return tensor
    raise KeyError(name)


def _headers(files: list[Path], stored: StoredFormat) -> dict[str, Header]:
    """Returns the shape and dtype of each tensor by its name, as the model has them."""
    headers: dict[str, Header] = {}
    for path in files:
        with open_weights(path) as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                if name in headers:
                    raise ValueError(
                        f"Each tensor must be in one weight file, got {name} in {str(path)!r} and "
                        "in another of the same folder. Download the whole repository."
                    )
                part = opened.get_slice(name)
                headers[name] = Header(part.get_shape(), part.get_dtype())
                if not stored.holds(name, part.get_dtype()):
                    require_float_storage(part.get_dtype(), name, path)
    return stored.unpacked(headers)


def require_float_storage(dtype: str, name: str, path: Path) -> None:
    """Raises ValueError if a tensor is not stored as floating-point numbers of 16 to 64 bits."""
    if dtype not in FLOATS:
        raise ValueError(
            f"Weights must be stored as {', '.join(FLOATS)}, got {dtype} for {name} in "
            f"{str(path)!r}. Choose a checkpoint that is not quantised."
        )


def fill(
    transformer: Transformer, family: Family, files: list[Path], stored: StoredFormat
) -> dict[str, str]:
    """Copies all stored tensors into the network, one at a time; returns a digest of each."""
    parts = family.tensors(transformer)
    digests: dict[str, str] = {}
    for path in files:
        with open_weights(path) as opened:
            # The network has no tensor for a stored head that is tied to the embedding.
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                name = stored.name_of(key)
                if name not in parts:
                    continue
                tensor = _tensor(opened, key, files, stored)
                digests[name] = digest_of_tensor(tensor)
                parts[name].copy_(tensor)
                # Frees this tensor before the next one is read.
                del tensor
                require_finite(parts[name], name, path)
    return digests


def _tensor(opened: Any, key: str, files: list[Path], stored: StoredFormat) -> Tensor:
    """Reads a tensor of an open file, or forms it from parts, which may be in other files."""
    if not stored.holds(key, opened.get_slice(key).get_dtype()):
        tensor: Tensor = opened.get_tensor(key)
        return tensor
    base = key.rpartition(".")[0]
    return stored.read(base, {part: _read(f"{base}.{part}", files) for part in stored.parts})


def digest_of_tensor(stored: Float[Tensor, "..."]) -> str:
    """Returns a digest of at most 127 numbers of a tensor, each rounded to bfloat16."""
    flat = stored.flatten()
    sample = flat[:: max(1, len(flat) // 64)].to(torch.bfloat16).view(torch.int16)
    return hashlib.sha256(repr((list(stored.shape), sample.tolist())).encode()).hexdigest()


def require_finite(part: Float[Tensor, "..."], name: str, path: Path) -> None:
    """Raises ValueError if a weight is NaN or infinite."""
    # A sum is NaN or infinite if a number is, and takes a twentieth of the time of checking each
    # number. A sum may also overflow, so that each number is checked then.
    if not part.sum().isfinite() and not part.isfinite().all():
        raise ValueError(
            f"Every weight must be a finite number in {part.dtype}, got NaN or infinity in {name} "
            f"of {str(path)!r}. Download the file again, or choose another dtype."
        )

"""Reads official checkpoints from an embedded asset, a folder or the hub; safetensors only."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from dllm_decode.models.families import Facts, Family, family_of
from dllm_decode.models.transformer import MaskedTransformer, Transformer

ASSETS = Path(__file__).parent.parent / "assets"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}


class _Header(NamedTuple):
    """Shape and dtype of a tensor, as safetensors writes them."""

    shape: list[int]
    dtype: str


def load_model(
    source: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> tuple[MaskedTransformer, PreTrainedTokenizerBase | None]:
    """Loads a masked-diffusion language model and its tokenizer.

    Everything is checked against the headers of the weight files before memory is allocated; then
    one tensor at a time is read and copied into place. No remote code is run.

    Args:
        source: The name of an embedded model such as "mini", a folder in the official format, or
            a hub id such as "GSAI-ML/LLaDA-8B-Instruct"; tried in this order.
        device: Where the model goes.
        dtype: Of all parameters; `None` keeps that of the checkpoint's embedding.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The model in evaluation mode, and its tokenizer: `None` if there are no tokenizer files.

    Raises:
        FileNotFoundError: If the source, its config.json or its safetensors files do not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If the checkpoint is damaged, incomplete or of a kind that is not supported, or
            the device is not there.
    """
    there = _available(device)
    folder = find_model(source, revision)
    config = _read_json(folder / "config.json")
    family = family_of(config)
    facts = family.read(config)
    with torch.device("meta"):
        transformer = Transformer(facts.shape)
    files = _weight_files(folder)
    stored = _check(transformer, family, files)
    tokenizer = _tokenizer(folder, family)
    _materialise(transformer, there, dtype or stored)
    model = MaskedTransformer(
        transformer,
        name=Path(source).resolve().name if Path(source).is_dir() else str(source),
        mask_id=facts.mask_id,
        eos_ids=facts.eos_ids,
        banned_ids=_banned_ids(facts, tokenizer),
        logit_shift=family.logit_shift,
        causal_block_length=facts.causal_block_length,
    )
    _fill(transformer, family, files)
    return model.eval().requires_grad_(False), tokenizer


def _available(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"A device is one that this torch can use, such as 'cpu' or 'cuda', got {device!r} "
            f"({str(error).splitlines()[0]}). Choose 'cpu', or install torch for that device."
        ) from None
    return wanted


def find_model(source: str | Path, revision: str | None = None) -> Path:
    """Returns the folder of an embedded model, of a path or of a download; see `load_model`."""
    embedded = _embedded()
    if str(source) in embedded:
        return ASSETS / str(source)
    if Path(source).is_dir():
        return Path(source)
    if isinstance(source, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source):
        return _download(source, revision)
    raise FileNotFoundError(
        f"A model is a folder, a hub id such as 'GSAI-ML/LLaDA-8B-Instruct', or an embedded name "
        f"({', '.join(embedded) or 'none is installed'}), got {str(source)!r}, which is none of "
        "these. Check the path."
    )


def _embedded() -> list[str]:
    return sorted(path.parent.name for path in ASSETS.glob("*/config.json"))


def _download(hub_id: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError) as error:
        raise OSError(
            f"{hub_id!r} is not a folder here, and could not be downloaded from the hub "
            f"({type(error).__name__}). Connect to the network (and log in, if the repository is "
            "private), or download the repository elsewhere and pass the path of its folder."
        ) from None


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"A model folder holds a {path.name}, got {str(path.parent)!r} without one. "
            "Pass the folder that the checkpoint's files are in."
        )
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not valid JSON ({error}). Download it again."
        ) from error
    if not isinstance(read, dict):
        raise ValueError(f"{str(path)!r} holds a JSON object, got a {type(read).__name__}.")
    return read


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map", {})
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = [folder / "model.safetensors"]
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


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is damaged or cut short ({error}). Download the file again."
        ) from error


def _check(transformer: Transformer, family: Family, files: list[Path]) -> torch.dtype:
    """Compares names and shapes with the files' headers; returns the embedding's dtype."""
    expected = {family.official_name(k): list(v.shape) for k, v in transformer.parts().items()}
    found = {name: header for path in files for name, header in _headers(path)}
    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"left over {name}" for name in found if name not in expected]
    problems += [
        f"{name} of shape {found[name].shape} instead of {shape}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    if problems:
        raise ValueError(
            f"The weight files hold exactly the tensors that config.json calls for, got "
            f"{len(problems)} differences: {'; '.join(problems)}. "
            "Check that both are of the same model, and complete."
        )
    odd = sorted({header.dtype for header in found.values()} - _DTYPES.keys())
    if odd:
        raise ValueError(
            f"Weights are stored as {', '.join(_DTYPES)}, got {', '.join(odd)}. "
            "Choose a checkpoint that is not quantised."
        )
    return _DTYPES[found[family.official_name("embedding.weight")].dtype]


def _headers(path: Path) -> Iterator[tuple[str, _Header]]:
    with _open(path) as opened:
        names: list[str] = opened.keys()
        for name in names:
            part = opened.get_slice(name)
            yield name, _Header(part.get_shape(), part.get_dtype())


def _materialise(transformer: Transformer, device: torch.device, dtype: torch.dtype) -> None:
    # Placement over several devices would be decided here, layer by layer.
    transformer.to(dtype).to_empty(device=device)


def _fill(transformer: Transformer, family: Family, files: list[Path]) -> None:
    parts = {family.official_name(name): part for name, part in transformer.parts().items()}
    for path in files:
        with _open(path) as opened:
            names: list[str] = opened.keys()
            for name in names:
                # No variable holds the tensor: it is gone before the next one is read.
                parts[name].copy_(opened.get_tensor(name))


def _tokenizer(folder: Path, family: Family) -> PreTrainedTokenizerBase | None:
    # The class is named: AutoTokenizer would ask on stdin whether remote code may run.
    has_fast = (folder / "tokenizer.json").is_file()
    if family.fast_tokenizer:
        return PreTrainedTokenizerFast.from_pretrained(folder) if has_fast else None
    has_slow = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    return Qwen2Tokenizer.from_pretrained(folder) if has_fast or has_slow else None


def _banned_ids(facts: Facts, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Vocabulary padding: ids that the tokenizer cannot turn into text."""
    if tokenizer is None:
        return ()
    kept = {facts.mask_id, *facts.eos_ids}
    padding = range(len(tokenizer), facts.shape.vocab_size)
    return tuple(token for token in padding if token not in kept)

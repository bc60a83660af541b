"""Reads official checkpoints from an embedded asset, a folder or the hub; safetensors only."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from dllm_decode.models.families.base import CheckpointFacts, Family, family_of
from dllm_decode.models.loading.placement import (
    DeviceMap,
    allocate,
    check_devices,
    dispatch,
    only_device,
    place,
)
from dllm_decode.models.loading.quantize import check_quantization, quantize_layers
from dllm_decode.models.loading.weights import check_weights, fill, read_json, weight_files
from dllm_decode.models.masked_transformer import MaskedTransformer
from dllm_decode.models.network.transformer import Transformer

ASSETS = Path(__file__).parents[2] / "assets"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")


def load_model(
    source: str | Path,
    *,
    device: str | torch.device | DeviceMap = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    quantize: str | None = None,
) -> tuple[MaskedTransformer, PreTrainedTokenizerBase | None]:
    """Loads a masked-diffusion language model and its tokenizer.

    Everything is checked against the headers of the weight files before memory is allocated; then
    one tensor at a time is read and copied into place. No remote code is run.

    Args:
        source: The name of an embedded model such as "mini", a folder in the official format, or
            a hub id such as "GSAI-ML/LLaDA-8B-Instruct"; tried in this order.
        device: Where the model goes. "auto" spreads it over all accelerators, then the CPU's
            memory, then files. A mapping says so part by part: "embedding", "layers.0" and so on,
            "norm" and "lm_head"; "layers" stands for all other layers, "" for the rest. Beside an
            accelerator, "cpu" only keeps weights: they come to the first accelerator for the time
            that they are needed. "disk" keeps them in files.
        dtype: Of all parameters; `None` keeps that of the checkpoint's embedding.
        revision: Branch, tag or commit of a hub id.
        max_memory: For "auto", weights on each device at most, such as {0: "20GB", "cpu": "60GB"}.
            Keys, values and logits need room beside them. `None`: nine tenths of what is free.
        offload_folder: Where files of weights go, of this model alone; made if it does not exist.
        quantize: "int8" stores the matrices of all layers in eight bits (torchao's weight-only
            scheme), embedding and head as they are; needs the extra `int8`, and one device.
            `None`: all as `dtype` says.

    Returns:
        The model in evaluation mode, and its tokenizer: `None` if there are no tokenizer files.

    Raises:
        FileNotFoundError: If the source, its config.json or its safetensors files do not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If the checkpoint is damaged, incomplete or of a kind that is not supported, or
            a device is not there, or a part of the model has none; or it cannot be quantised.
    """
    check_devices(device)
    if quantize is not None:
        check_quantization(quantize)
    folder = find_model(source, revision)
    config = read_json(folder / "config.json")
    family = family_of(config)
    facts = family.read(config)
    with torch.device("meta"):
        transformer = Transformer(facts.shape)
    files = weight_files(folder)
    stored = check_weights(transformer, family, files)
    tokenizer = _tokenizer(folder, family)
    transformer.to(dtype or stored)
    placed = place(transformer, device, max_memory=max_memory, offload_folder=offload_folder)
    there = None if quantize is None else only_device(placed)
    # Weights that will be quantised are read into the CPU's memory.
    allocate(transformer, placed if there is None else place(transformer, "cpu"))
    model = MaskedTransformer(
        transformer,
        name=Path(source).resolve().name if Path(source).is_dir() else str(source),
        mask_id=facts.mask_id,
        eos_ids=facts.eos_ids,
        banned_ids=_banned_ids(facts, tokenizer),
        logit_shift=family.logit_shift,
        causal_block_length=facts.causal_block_length,
    )
    fill(transformer, family, files)
    if there is None:
        dispatch(transformer, placed)
    else:
        quantize_layers(transformer, there)
    return model.eval().requires_grad_(False), tokenizer


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


def _tokenizer(folder: Path, family: Family) -> PreTrainedTokenizerBase | None:
    # The class is named: AutoTokenizer would ask on stdin whether remote code may run.
    has_fast = (folder / "tokenizer.json").is_file()
    if family.fast_tokenizer:
        return PreTrainedTokenizerFast.from_pretrained(folder) if has_fast else None
    has_slow = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    return Qwen2Tokenizer.from_pretrained(folder) if has_fast or has_slow else None


def _banned_ids(
    facts: CheckpointFacts, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[int, ...]:
    """Vocabulary padding: ids that the tokenizer cannot turn into text."""
    if tokenizer is None:
        return ()
    kept = {facts.mask_id, *facts.eos_ids}
    padding = range(len(tokenizer), facts.shape.vocab_size)
    return tuple(token for token in padding if token not in kept)

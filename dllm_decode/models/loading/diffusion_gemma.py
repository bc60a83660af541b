"""Loads DiffusionGemma with the class of transformers; safetensors only, no remote code."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import DiffusionGemmaForBlockDiffusion

from dllm_decode.models.diffusion_gemma import DiffusionGemma
from dllm_decode.models.loading.weights import by_transformers, digest_of, model_files


def load_diffusion_gemma(
    folder: Path,
    name: str,
    device: Any,
    dtype: torch.dtype | None,
    left_out: Mapping[str, object],
    *,
    max_memory: Mapping[int | str, int | str] | None,
    offload_folder: str | Path | None,
) -> DiffusionGemma:
    """Loads a model without its image encoder; see `load_model`.

    Raises:
        ValueError: If an option of `left_out` is given, which only networks of this package have,
            or a tensor is missing.
    """
    given = [option for option, value in left_out.items() if value]
    if given:
        raise ValueError(
            f"{given[0]} must be left out for {name}, which transformers computes. Only networks "
            "of this package have it."
        )
    files, is_spread = model_files(folder), device == "auto" or isinstance(device, Mapping)
    with by_transformers(folder):
        read: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder,
            dtype="auto" if dtype is None else dtype,
            device_map=device if is_spread else None,
            max_memory=max_memory,
            offload_folder=offload_folder,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    network, report = read
    absent = sorted(name for name in report["missing_keys"] if "vision" not in name)
    if absent:
        raise ValueError(
            f"The weight files in {str(folder)!r} must have every tensor of the model, got none "
            f"for {', '.join(absent[:8])}. Download them again."
        )
    network.model.encoder.vision_tower = None
    if not is_spread:
        network.to(device)
    ends = network.generation_config.eos_token_id
    if ends is None:
        ends = network.config.get_text_config().eos_token_id
    model = DiffusionGemma(
        network, name=name, eos_ids=tuple(ends) if isinstance(ends, list) else (ends,)
    )
    model.files = files
    model.fingerprint = _fingerprint_of(network)
    return model


def _fingerprint_of(network: DiffusionGemmaForBlockDiffusion) -> str:
    digests = [
        (name, digest_of(weight.detach()))
        for name, weight in sorted(network.state_dict().items())
        # Weights that are kept in files are told apart by the others.
        if weight.is_floating_point() and not weight.is_meta
    ]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]

"""Loads models that transformers computes: safetensors only, no remote code."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.model_needs import generation_config_of
from dllm_decode.models.loading.weights import digest_of_tensor, model_files

if TYPE_CHECKING:
    from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma
    from dllm_decode.models.predictors.xlnet import XLNet

# For a folder without a tokenizer.
_MASK_ID_OF_XLNET = 6


@contextmanager
def by_transformers(folder: Path) -> Iterator[None]:
    """Names the folder in errors of transformers, and keeps it from drawing a progress bar."""
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    # A wrong value in one of the files can make transformers raise an error of any class.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"transformers cannot read the model in {str(folder)!r} ({lines[0]}). Check its "
            "config.json and tokenizer files, or download the folder again."
        ) from error
    finally:
        if was_shown:
            logging.enable_progress_bar()


def load_by_transformers(
    kind: Any, folder: Path, *, exact: bool = False, unread: str | None = None, **options: Any
) -> Any:
    """Returns a model of a class of transformers, from safetensors alone.

    Args:
        kind: The class.
        folder: Folder of the checkpoint.
        exact: Whether further tensors in the files are an error.
        unread: Tensors whose names contain this may be missing.
        **options: Of `from_pretrained`.

    Raises:
        ValueError: If transformers cannot read it, or tensors do not match config.json.
    """
    with by_transformers(folder):
        model, info = kind.from_pretrained(
            folder, use_safetensors=True, local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    missing = [name for name in info["missing_keys"] if unread is None or unread not in name]
    problems = [f"missing {name}" for name in sorted(missing)]
    problems += [f"left over {name}" for name in sorted(info["unexpected_keys"]) if exact]
    problems += [f"{name[0]} of another shape" for name in sorted(info["mismatched_keys"])]
    if problems:
        raise ValueError(
            f"The weight files must hold exactly the tensors that config.json calls for, got "
            f"{len(problems)} differences in {str(folder)!r}: {'; '.join(problems[:8])}. "
            "Check that both are of the same model, and complete."
        )
    return model


def _fingerprint_of_network(network: nn.Module) -> str:
    """Returns a fingerprint of the weights of a network that transformers computes."""
    digests = [
        (name, digest_of_tensor(weight.detach()))
        for name, weight in sorted(network.state_dict().items())
        # Weights that accelerate moves to the device for use (on the meta device) are left out.
        if weight.is_floating_point() and not weight.is_meta
    ]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def load_diffusion_gemma(
    folder: Path, name: str, device: Any, dtype: torch.dtype | None
) -> "DiffusionGemma":
    """Loads a model without its image encoder; see `load_model`.

    Raises:
        ValueError: If a tensor is missing, or transformers has no such network.
    """
    try:
        from transformers import DiffusionGemmaForBlockDiffusion
    except ImportError as error:
        raise ValueError(
            f"{name} needs transformers 5.23 or later, which has its network. Install that."
        ) from error
    from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma

    files, is_spread = model_files(folder), device == "auto"
    network = load_by_transformers(
        DiffusionGemmaForBlockDiffusion,
        folder,
        unread="vision",
        dtype="auto" if dtype is None else dtype,
        device_map=device if is_spread else None,
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
    model.fingerprint = _fingerprint_of_network(network)
    return model


def load_xlnet(
    folder: Path,
    tokenizer: Any,
    name: str,
    device: Any,
    dtype: torch.dtype | None,
    *,
    mask_id: int | None,
) -> "XLNet":
    """Loads an XLNet; see `load_model`.

    The tokenizer, if there is one, is changed to add no special tokens, because the model fills in
    text between texts.

    Raises:
        ValueError: If the model is of another kind, or a tensor is missing.
    """
    from transformers import XLNetLMHeadModel

    from dllm_decode.models.predictors.xlnet import XLNet

    path = folder / "config.json"
    config = ConfigReader(read_json(path), file=repr(str(path)))
    for key, allowed in (("attn_type", "bi"), ("bi_data", False)):
        if not config.is_one_of(key, (allowed,)):
            raise config.error(
                key, f"{allowed!r}, so that any subset can be read", config.value(key)
            )
    files = model_files(folder)
    network = load_by_transformers(XLNetLMHeadModel, folder, dtype="auto")
    fingerprint = _fingerprint_of_network(network)
    # The library leaves some weights in float32, whatever dtype is asked for.
    network.to(device, dtype or network.transformer.word_embedding.weight.dtype)
    if mask_id is None:
        mask_id = _MASK_ID_OF_XLNET if tokenizer is None else tokenizer.mask_token_id
    ends = (generation_config_of(folder) or config).integers(
        "eos_token_id", most=int(network.config.vocab_size) - 1
    )
    model = XLNet(network, name=name, mask_id=mask_id, eos_ids=tuple(ends))
    model.files, model.fingerprint = files, fingerprint
    if tokenizer is not None:
        tokenizer.backend_tokenizer.post_processor = None
    return model

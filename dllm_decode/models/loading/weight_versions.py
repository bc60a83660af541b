"""Replaces all weights of a model in use, or none; computes versions that tell weights apart."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.core.model import MaskPredictor, fingerprint_of
from dllm_decode.models.loading.load import load_model
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer
from samplers.checks import shown

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def version_of(model: MaskPredictor) -> str:
    """Returns a text that changes with the weights: a digest of the sum of bits of each parameter.

    All weights are read once. Without parameters, or with quantised ones, the version is the
    model's fingerprint, which an optimiser's step does not change.
    """
    if not isinstance(model, nn.Module):
        return fingerprint_of(model)
    # A packed parameter is NaN; a state dict puts the weights back.
    state = model.state_dict()
    if any(type(part) is not Tensor or part.is_mkldnn for part in state.values()):
        return fingerprint_of(model)
    sums = [
        (name, int(part.contiguous().view(_INTEGERS[part.element_size()]).sum(dtype=torch.int64)))
        for name, part in state.items()
    ]
    return sha256(repr(sums).encode()).hexdigest()[:16]


def replace_weights(model: MaskedTransformer, weights: Mapping[str, Tensor] | str | Path) -> None:
    """Replaces all weights in place; if anything about them is wrong, none is changed.

    Call it between two rounds, in the thread that decodes: after `run` or `roll_out` has yielded.
    Packed and compiled forwards take the new weights. Rows that run have keys and values of the old
    weights: `roll_out` begins these rows again, `run` does not.

    Args:
        model: The model in use.
        weights: A state dict with the names of `model.state_dict()`, in any dtype; or a folder, or
            another source of `load_model`, which needs memory for a second model meanwhile.

    Raises:
        ValueError: If a name is missing or unknown, a shape differs, a number is not finite in the
            model's dtype, or the model is quantised or spread over devices.
    """
    network = model.transformer
    if network.quantized is not None or network.route is not None:
        raise ValueError(
            f"Weights can be replaced in a model on one device that is not quantised, got "
            f"{model.name} with quantize={network.quantized!r} on "
            f"{1 if network.route is None else len(set(network.route.values()))} devices. Load the "
            "new weights with load_model."
        )
    if not isinstance(weights, Mapping | str | Path):
        raise ValueError(
            "weights must be a state dict such as model.state_dict(), or a folder that load_model "
            f"reads, got {shown(weights)}."
        )
    fingerprint: str | None = None
    # The configuration and the tokenizer are still those of the files.
    files = tuple(file for file in model.files if file.suffix != ".safetensors")
    if not isinstance(weights, Mapping):
        loaded, _ = load_model(
            weights, device=model.device, dtype=model.dtype, tokenizer="optional"
        )
        assert isinstance(loaded, MaskedTransformer)
        weights, fingerprint, files = loaded.state_dict(), loaded.fingerprint, loaded.files
    # Puts packed weights back into the parameters.
    current = model.state_dict()
    _require_alike(current, weights)
    with torch.no_grad():
        for name, part in current.items():
            part.copy_(weights[name])
    model.fingerprint = version_of(model) if fingerprint is None else fingerprint
    model.files = files


def _require_alike(current: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless weights have the names and shapes of the current ones, and fit."""
    missing, unknown = sorted({*current} - {*weights}), sorted({*weights} - {*current})
    if missing or unknown:
        raise ValueError(
            f"Weights must have the names of model.state_dict(), got none of {missing[:3]} and "
            f"the unknown {unknown[:3]}. Nothing was changed."
        )
    for name, part in current.items():
        _require_fit(name, part, weights[name])


def _require_fit(name: str, old: Float[Tensor, "..."], new: object) -> None:
    """Raises ValueError unless a new weight is a finite tensor of the old one's shape."""
    if not isinstance(new, Tensor) or new.shape != old.shape or not new.is_floating_point():
        got = f"{new.dtype} {tuple(new.shape)}" if isinstance(new, Tensor) else shown(new)
        raise ValueError(
            f"{name} must be floating-point numbers of the shape {tuple(old.shape)}, got {got}. "
            "Nothing was changed."
        )
    if not new.to(old.dtype).isfinite().all():
        raise ValueError(
            f"{name} must be finite in {old.dtype}, got NaN or infinity. Nothing was changed."
        )

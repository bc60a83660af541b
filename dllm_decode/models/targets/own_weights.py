"""A mask predictor as its own causal target: the same weights under a causal mask."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.core.model import ForwardInputs, KVCache, zeroed_cache
from dllm_decode.models.families import FAMILIES
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer, attention_on
from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.models.targets.causal_only import CausalOnly
from dllm_decode.models.targets.target_network import CausalInputs, CausalOutput, LayerKVs


def as_causal_target(model: MaskedTransformer | CausalOnly) -> CausalTarget:
    """Makes a causal target of the weights of a model, for `ARVerify` and `Guided`.

    Under a causal mask, these models continue text from left to right, like the autoregressive
    models that they were made of. One model then drafts and verifies (self-speculation), and
    `decode(model, ..., verifier=ARVerify(as_causal_target(model)))` writes what the model writes
    causally by itself.

    Source: NVIDIA 2026, Nemotron-Labs-Diffusion: `linear_spec_generate`, a draft in both
    directions and a causal forward that accepts it.
    Differs: The answer never exceeds `gen_length`. Keys and values of the drafting forwards are
    kept apart, in the cache of the mask predictor. For A2D models the authors publish no such mode;
    the answer is that of the causal forward, but its quality is not known.

    Args:
        model: A model on one device. A `CausalOnly` already has a target, which is returned.

    Raises:
        ValueError: If the causal forward of the model means nothing, or it is spread over devices.
    """
    if isinstance(model, CausalOnly):
        return model.target
    if not model.is_causal_too:
        names = ", ".join(family.name for family in FAMILIES.values() if family.is_causal_too)
        raise ValueError(
            f"The model must be of a family that also predicts causally ({names}), got "
            f"{model.name}, whose logits under a causal mask mean nothing. Load a target with "
            "load_target."
        )
    if model.transformer.route is not None:
        raise ValueError(
            f"A model that is its own target must be on one device, got {model.name}, which is "
            "spread over several. Load it on one, or load a target with load_target."
        )
    return CausalTarget(MaskedNetwork(model), name=f"{model.name} (causal)", files=model.files)


OutputFactors: TypeAlias = tuple[Tensor, Tensor, float]
"""Matrices `down` and `up` and a scale: `scale * up @ down` is added to a projection."""


class MaskedNetwork:
    """The `CausalNetwork` of a mask predictor's weights, which may have factors of its own."""

    takes_positions = True
    # This package computes the mask, and its tests check that the mask is followed.
    heeds_masks = True

    def __init__(
        self, model: MaskedTransformer, factors: Sequence[OutputFactors | None] = ()
    ) -> None:
        """Wraps a model; `factors` are added to the output projection of each layer."""
        self.model = model
        self._factors = [part and _on_device_of(model, part) for part in factors]
        self.vocab_size = model.vocab_size
        self.eos_ids = model.eos_ids

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self.model.device

    def read(self, inputs: CausalInputs) -> CausalOutput:
        tokens, positions, attend, layers, wanted = inputs
        num_rows, width = tokens.shape
        num_slots = attend.shape[-1] - width
        if attend.dim() == 2:
            slots = torch.arange(attend.shape[-1], device=tokens.device)
            attend = attend[:, None] & (slots <= slots[num_slots:, None])
        kv_cache = self._grown(layers, num_rows, num_slots + width)
        transformer = self.model.transformer
        # Not through `predict`, which packs the weights or runs compiled code.
        with torch.no_grad(), attention_on(self.device), self._adapted():
            row_wanted = wanted.expand(num_rows, -1)
            new_slots = slice(num_slots, num_slots + width)
            forward = ForwardInputs(tokens, positions, row_wanted, attend, kv_cache, new_slots)
            hidden = transformer.forward_groups([forward])
            logits = transformer.head(hidden)
        num_layers = transformer.config.num_layers
        return CausalOutput(logits, tuple(kv_cache.layer(i) for i in range(num_layers)))

    @contextmanager
    def _adapted(self) -> Iterator[None]:
        """Adds the factors to the outputs of the projections, for one forward."""
        with ExitStack() as stack:
            for layer, factors in zip(self.model.transformer.layers, self._factors, strict=False):
                if factors is not None:
                    output = layer.get_submodule("attention.output")
                    stack.enter_context(output.register_forward_hook(partial(_added, factors)))
            yield

    def _grown(self, layers: LayerKVs, num_rows: int, num_slots: int) -> KVCache:
        """Returns a cache whose first slots hold these keys and values."""
        config = self.model.transformer.config
        size = (config.num_layers, num_rows, config.num_kv_heads, num_slots, config.head_dim)
        grown = zeroed_cache(size, self.model.dtype, self.device)
        for i, (keys, values) in enumerate(layers):
            grown.keys[i, :, :, : keys.shape[2]] = keys
            grown.values[i, :, :, : values.shape[2]] = values
        return grown


def _on_device_of(model: MaskedTransformer, factors: OutputFactors) -> OutputFactors:
    down, up, scale = factors
    return down.to(model.device, model.dtype), up.to(model.device, model.dtype), scale


def _added(
    factors: OutputFactors, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """Returns the output of a projection with an adapter."""
    down, up, scale = factors
    return output + scale * F.linear(F.linear(inputs[0], down), up)

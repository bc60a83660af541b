"""Low-rank additions to the matrices of a model, made and trained by the package peft."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dllm_decode.core.files import new_files
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import LLADA, Family
from dllm_decode.models.loading.weights import write_weights
from dllm_decode.models.network.transformer import Transformer

_ADAPTER = "default"
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_LINEAR_MAPS = r"layers\.\d+\.(attention\.(qkv|output)|mlp\.(shared\.)?(gate_up|down))"


class LoRA:
    """Low-rank additions to every linear map of the layers; all other weights are frozen.

    To a matrix W is added B A, A of `rank` rows and B of `rank` columns; B begins at 0, so that
    training begins at the model as it is. Queries, keys and values are one linear map here: they
    share A. In a mixture of experts, attention, dense layers and the shared expert are trained, not
    the routed experts.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models",
    https://arxiv.org/abs/2106.09685, by the package peft.

    Args:
        model: Gets the additions, in float32 at least. A new model has LLaDA's names of matrices.
        rank: Between 1 and the hidden size of the model.
        seed: Seed of torch's global generator, which draws the first values of A, so that a
            run that is started again begins with the same values.

    Raises:
        ValueError: If the rank is out of range, or the package peft is not installed.
    """

    def __init__(self, model: MaskedTransformer, *, rank: int = 128, seed: int = 0) -> None:
        require_lora(model, rank)
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import cast_adapter_dtype

        transformer = model.transformer
        self._transformer = transformer
        self._official = list(_official(transformer, model.family or LLADA))
        self._config = LoraConfig(r=rank, lora_alpha=rank, target_modules=_LINEAR_MAPS)
        torch.manual_seed(seed)
        inject_adapter_in_model(self._config, transformer, adapter_name=_ADAPTER)
        cast_adapter_dtype(transformer, adapter_name=_ADAPTER)
        # Moving the model, even to the same device, unpacks its weights.
        model.to(model.device)

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights that are trained."""
        return [weight for weight in self._transformer.parameters() if weight.requires_grad]

    def save(self, folder: Path, *, base: str) -> None:
        """Writes a folder that `load_model(base, adapter=folder)` reads, and PEFT too.

        The files of an earlier adapter in it are replaced, both or none. Raises ValueError if the
        folder holds a model, which transformers would load with the adapter, and OSError, in one
        sentence, if the files cannot be written.
        """
        if (folder / "config.json").exists():
            raise ValueError(
                f"An adapter must go to a folder without a model, got {str(folder)!r} with "
                "config.json. Choose another folder."
            )
        tensors = {}
        for module, rows, official in self._official:
            layer: Any = self._transformer.get_submodule(module)
            factors = {"A": layer.lora_A[_ADAPTER].weight, "B": layer.lora_B[_ADAPTER].weight[rows]}
            for letter, factor in factors.items():
                # Copies: pieces of one linear map share a factor, which safetensors refuses.
                name = f"base_model.model.{official}.lora_{letter}.weight"
                tensors[name] = factor.detach().to("cpu", copy=True)
        # Whole names, because some families name a matrix of the layers like the head.
        self._config.target_modules = sorted(official for *_, official in self._official)
        self._config.base_model_name_or_path = base
        self._config.inference_mode = True
        with new_files(folder, _FILES) as written:
            self._config.save_pretrained(str(written))
            write_weights(written / "adapter_model.safetensors", tensors, {"format": "pt"})


def require_lora(model: MaskedTransformer, rank: int) -> None:
    """Raises ValueError if `LoRA` would: if the rank is out of range, or peft is not installed."""
    most = model.transformer.config.hidden_size
    if not 1 <= rank <= most:
        raise ValueError(
            f"rank must be between 1 and {most}, the hidden size of {model.name}, got "
            f"{rank}. Choose another, or train all weights."
        )
    if find_spec("peft") is None:
        raise ValueError(
            'LoRA needs the package peft; install it with: pip install ".[lora]" in the clone, or '
            "train all weights."
        )


def _official(transformer: Transformer, family: Family) -> Iterator[tuple[str, slice, str]]:
    """Yields the name of a linear map here, some of its rows, and the official name of these rows.

    Official matrices are found by their address in memory.
    """
    tensors = family.tensors(transformer)
    for module, linear in transformer.named_modules():
        if not isinstance(linear, nn.Linear) or not re.fullmatch(_LINEAR_MAPS, module):
            continue
        weight = linear.weight
        ends = weight.data_ptr() + weight.nbytes
        row_bytes = weight.stride(0) * weight.element_size()
        for name, part in tensors.items():
            if part.dim() == 2 and weight.data_ptr() <= part.data_ptr() < ends:
                first = (part.data_ptr() - weight.data_ptr()) // row_bytes
                yield module, slice(first, first + len(part)), name.removesuffix(".weight")

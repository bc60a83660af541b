"""Trains low-rank additions to the matrices of a model, and writes them in PEFT's format."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family

_ADAPTER = "default"
_LINEAR_MAPS = r"layers\.\d+\.(attention\.(qkv|output)|mlp\.(shared\.)?(gate_up|down))"


class Piece(NamedTuple):
    """Some rows of a linear map, which are a matrix of their own in the official checkpoint.

    Attributes:
        module: Name of the linear map within the transformer.
        rows: Which of its rows.
        official: Name of the module in the official checkpoint.
    """

    module: str
    rows: slice
    official: str


class LoRA:
    """Low-rank additions to every linear map of the layers; all other weights are frozen.

    To a matrix W is added (alpha / rank) B A, A of `rank` rows and B of `rank` columns; B begins at
    0, so that training begins at the model as it is. Queries, keys and values are one linear map
    here: they share A. Of a mixture of experts attention, dense layers and the shared expert are
    trained, not the routed experts.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models",
    https://arxiv.org/abs/2106.09685, by the package peft.

    Args:
        model: Gets the additions, in float32 at least.
        family: Of the model: says how its authors name the matrices.
        rank: At least 1, and at most the hidden size of the model.
        alpha: At least 1.

    Raises:
        ValueError: If a number is out of range, or the package peft is not installed.
    """

    def __init__(
        self, model: MaskedTransformer, family: Family, *, rank: int = 128, alpha: int = 128
    ) -> None:
        require_lora(model, rank=rank, alpha=alpha)
        self._transformer = model.transformer
        self._pieces = list(_pieces(model, family))
        self._rank = rank
        self._alpha = alpha
        _inject(self._transformer, rank, alpha)
        # A recorded graph would go on without the additions: moving the model forgets it.
        model.to(model.device)

    @property
    def weights(self) -> list[nn.Parameter]:
        """What is trained."""
        return [weight for weight in self._transformer.parameters() if weight.requires_grad]

    def save(self, folder: Path, *, base: str) -> None:
        """Writes a folder that `load_model(base, adapter=folder)` reads, and PEFT too.

        Args:
            folder: Made if need be.
            base: Name or folder of the model that it was trained on.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for piece in self._pieces:
            down, up = self._factors(piece.module)
            name = f"base_model.model.{piece.official}"
            # Copies: pieces of one linear map share a factor, which safetensors refuses.
            tensors[f"{name}.lora_A.weight"] = down.detach().to("cpu", copy=True)
            tensors[f"{name}.lora_B.weight"] = up[piece.rows].detach().to("cpu", copy=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "base_model_name_or_path": base,
            "r": self._rank,
            "lora_alpha": self._alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            # A pattern: some families name a matrix of the layers like the head.
            "target_modules": "|".join(sorted({_pattern(p.official) for p in self._pieces})),
            "task_type": None,
        }
        text = json.dumps(config, indent=2) + "\n"
        (folder / "adapter_config.json").write_text(text, encoding="utf-8")

    def _factors(self, module: str) -> tuple[Float[Tensor, "r I"], Float[Tensor, "O r"]]:
        layer: Any = self._transformer.get_submodule(module)
        return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight


def require_lora(model: MaskedTransformer, *, rank: int, alpha: int) -> None:
    """Raises ValueError if `LoRA` would: if a number is out of range, or peft is not installed."""
    if rank < 1 or alpha < 1:
        raise ValueError(f"rank and alpha must be at least 1, got {rank} and {alpha}.")
    most = model.transformer.config.hidden_size
    if rank > most:
        raise ValueError(
            f"rank must be at most {most}, the hidden size of {model.name}, got {rank}: more is no "
            "low rank. Choose a lower one, or train all weights."
        )
    try:
        import peft  # noqa: F401
    except ImportError:
        raise ValueError(
            "LoRA needs the package peft; install it with: pip install "
            '".[lora]" in the clone, or train all weights.'
        ) from None


def _inject(transformer: nn.Module, rank: int, alpha: int) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=_LINEAR_MAPS
    )
    transformer.requires_grad_(False)
    inject_adapter_in_model(config, transformer, adapter_name=_ADAPTER)
    for weight in transformer.parameters():
        if weight.requires_grad and weight.dtype.itemsize < 4:
            weight.data = weight.data.float()


def _pieces(model: MaskedTransformer, family: Family) -> Iterator[Piece]:
    """Finds the official matrices within ours by where their numbers lie in memory."""
    transformer = model.transformer
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
                rows = slice(first, first + len(part))
                yield Piece(module, rows, name.removesuffix(".weight"))


def _pattern(official: str) -> str:
    words = official.split(".")
    return r"\.".join(r"\d+" if word.isdigit() else re.escape(word) for word in words)

"""Weights that are split over processes, as `accelerate launch --use_fsdp --fsdp_version 2` asks.

Each process holds an equal part of every weight, its gradient and its moments. Each forward and
backward of a layer gathers the layer's weights on all processes, which must thus run equally many.
Decodes of several processes do not: all weights are gathered before them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.optim import Muon, Optimizer

from dllm_decode.models.network.layer import Layer

_REFUSED = {
    "ACCELERATE_USE_DEEPSPEED": "--use_deepspeed",
    "ACCELERATE_USE_MEGATRON_LM": "--use_megatron_lm",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "--use_parallelism_config",
}
"""Options of `accelerate launch`, by the variables that tell its processes of them."""
_REFUSED_WITH_FSDP = {
    "FSDP_OFFLOAD_PARAMS": "--fsdp_offload_params",
    "FSDP_ACTIVATION_CHECKPOINTING": "--fsdp_activation_checkpointing",
    "FSDP_IGNORED_MODULES": "--fsdp_ignored_modules",
    "ACCELERATE_DYNAMO_BACKEND": "--dynamo_backend",
}


def require_launch(*, device: str, uses_muon: bool) -> None:
    """Raises ValueError if this process was launched with options that no training here follows.

    Args:
        device: Where the model is trained, "cpu" or "cuda".
        uses_muon: Whether matrices are trained with torch's `Muon`.
    """
    found, beside = [option for name, option in _REFUSED.items() if _is_on(name)], ""
    if _is_on("ACCELERATE_USE_FSDP"):
        beside = " beside --use_fsdp"
        found += [option for name, option in _REFUSED_WITH_FSDP.items() if _is_on(name)]
        others = {
            "--fsdp_version 1": os.environ.get("FSDP_VERSION", "1") != "2",
            # Accelerate would train whole models there, without a word.
            "--device cpu": device == "cpu",
            "--muon": uses_muon,
            f"torch {torch.__version__}": not hasattr(FSDPModule, "reset_iter_state"),
        }
        found += [option for option, is_asked in others.items() if is_asked]
    if found:
        raise ValueError(
            f"{', '.join(found)} must be left out{beside}, got it from the command or from the "
            "configuration of accelerate. To split the weights over GPUs, launch with --use_fsdp "
            "--fsdp_version 2, which needs torch 2.13 and AdamW. To let each process hold all "
            "weights, launch without both; --lora-rank and --precision bf16 take less memory."
        )


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in ("", "no", "false", "0")


def prepare(
    accelerator: Accelerator, losses: nn.Module, optimisers: Sequence[Optimizer]
) -> tuple[nn.Module, list[Optimizer]]:
    """Returns module and optimisers as an accelerator wraps them; FSDP splits layer by layer.

    Raises ValueError if FSDP cannot split these weights, or train them so with these optimisers.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
        has_layers = any(isinstance(part, Layer) for part in losses.modules())
        names = [type(one).__name__ for one in (*losses.children(), *optimisers)]
        dtypes = sorted({str(one.dtype) for one in losses.parameters() if one.requires_grad})
        is_matrix_free = len(optimisers) == 1 and not isinstance(optimisers[0], Muon)
        if not (accelerator.is_fsdp2 and has_layers and is_matrix_free and len(dtypes) == 1):
            raise ValueError(
                "FSDP must be FSDP2 of a network of this package, whose trained weights have one "
                "dtype and one optimiser that needs no whole matrices, such as AdamW; got version "
                f"{plugin.fsdp_version}, {', '.join(names + dtypes)}."
            )
        plugin.auto_wrap_policy = transformer_auto_wrap_policy
        plugin.transformer_cls_names_to_wrap = [Layer.__name__]
        # Every process has loaded the weights.
        plugin.cpu_ram_efficient_loading = False
        # FSDP's own bfloat16 would round rotations, and the weights that are decoded with and
        # written; autocast rounds what it rounds in a process that holds the whole model.
        plugin.mixed_precision_policy = None
        losses.forward = accelerator.autocast()(losses.forward)
    prepared, *others = accelerator.prepare(losses, *optimisers)
    return prepared, others


def gather(module: nn.Module) -> None:
    """Gathers weights that are split, until they are split again; every process takes part."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Lets each process run the model and read its weights by itself, as often as it wants."""
    gather(module)
    yield
    if isinstance(module, FSDPModule):
        # Forgets the forwards meanwhile, too: otherwise the next backward would begin to fetch the
        # last of them, on those processes that had any, and wait for the others for ever.
        module.reset_iter_state()
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_reshard_after_forward(part is not module, recurse=False)

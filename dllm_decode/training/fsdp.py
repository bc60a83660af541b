"""Weights that are split over processes, as `accelerate launch --use_fsdp --fsdp_version 2` asks.

Each process holds an equal part of every weight, its gradient and its moments. Each forward and
backward of a layer gathers the layer's weights on all processes, which must thus run equally many
forwards. Decodes do not run equally many, so all weights are gathered before decodes.
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
from torch.optim import AdamW, Optimizer

from dllm_decode.models.network.layer import Layer

_REFUSED = (
    "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG",
)  # fmt: skip
"""Variables by which `accelerate launch` tells its processes of its options."""
_REFUSED_WITH_FSDP = (
    "FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING", "FSDP_IGNORED_MODULES",
    "ACCELERATE_DYNAMO_BACKEND",
)  # fmt: skip


def require_launch(*, device: str, uses_muon: bool) -> None:
    """Raises ValueError if this process was launched with options that training does not support.

    Args:
        device: Where the model is trained, "cpu" or "cuda".
        uses_muon: Whether matrices are trained with torch's `Muon`.
    """
    splits = _is_on("ACCELERATE_USE_FSDP")
    variables = filter(_is_on, _REFUSED + (_REFUSED_WITH_FSDP if splits else ()))
    refused = [f"--{name.removeprefix('ACCELERATE_').lower()}" for name in variables]
    if splits:
        unsupported = {
            "--fsdp_version 1": os.environ.get("FSDP_VERSION", "1") != "2",
            # Accelerate would train whole models there, without a warning.
            "--device cpu": device == "cpu",
            "--muon": uses_muon,
            f"torch {torch.__version__}": not hasattr(FSDPModule, "reset_iter_state"),
        }
        refused += [option for option, is_asked in unsupported.items() if is_asked]
    if refused:
        beside = " beside --use_fsdp" if splits else ""
        raise ValueError(
            f"{', '.join(refused)} must be left out{beside}, got it from the command or from the "
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

    Raises ValueError if FSDP cannot split the weights, or not with these optimisers.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        if not accelerator.is_fsdp2 or [type(optimiser) for optimiser in optimisers] != [AdamW]:
            raise ValueError(
                "Weights must be split by FSDP2 and trained with one AdamW, got version "
                f"{accelerator.state.fsdp_plugin.fsdp_version} and "
                f"{', '.join(type(optimiser).__name__ for optimiser in optimisers)}."
            )
        plugin = accelerator.state.fsdp_plugin
        plugin.auto_wrap_policy = transformer_auto_wrap_policy
        plugin.transformer_cls_names_to_wrap = [Layer.__name__]
        # Every process has loaded the weights.
        plugin.cpu_ram_efficient_loading = False
        # FSDP's own bfloat16 would round rotations, and the weights that decodes use and that are
        # written; autocast rounds the same as in a process that holds the whole model.
        plugin.mixed_precision_policy = None
        losses.forward = accelerator.autocast()(losses.forward)
    prepared, *prepared_optimisers = accelerator.prepare(losses, *optimisers)
    return prepared, prepared_optimisers


def gather(module: nn.Module) -> None:
    """Gathers split weights, until they are split again; every process must call this."""
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
        # Forgets the forwards in between, too. Otherwise the next backward would begin to fetch
        # the last of these, on processes that had any, and wait for the other processes for ever.
        module.reset_iter_state()
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_reshard_after_forward(part is not module, recurse=False)

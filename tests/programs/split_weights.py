"""Trains in two processes with weights that FSDP2 splits, on the CPU, and with whole models.

Each process is started with the name of a function below and a folder.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from test_distillation import (
    EOS,
    GEN_LENGTH,
    assert_same,
    objective_of,
    reversals,
    tiny_model,
    weights_of,
)
from torch import Tensor
from torch.optim import AdamW, Optimizer

from dllm_decode import decode
from dllm_decode.models.families import FAMILIES
from dllm_decode.training import Progress, Settings, make_optimisers, train
from dllm_decode.training.loop import NotFiniteError
from dllm_decode.training.lora import LoRA
from dllm_decode.training.teacher import Lessons
from samplers import EntropyThreshold

WAYS: dict[str, Any] = {"all": {}, "bf16": {"precision": "bf16"}, "lora": {"lora_rank": 2}}


def accelerator_of(*, splits: bool, precision: str) -> Accelerator:
    """Returns an accelerator that splits on the CPU, where accelerate by itself never does."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    if splits:
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    kind = DistributedType.FSDP if splits else DistributedType.MULTI_CPU
    accelerator.state.distributed_type = PartialState().distributed_type = kind
    return accelerator


def run(
    folder: Path, *, splits: bool = True, lora_rank: int = 0, precision: str = "no",
    ends_at: int = 99, wrong_at: int = 99, muon: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """Returns the weights after four steps with an evaluation between.

    Args:
        folder: Of the checkpoints.
        splits: With FSDP2; otherwise each process holds the whole model.
        lora_rank: 0 trains all weights.
        precision: As in `Accelerator`.
        ends_at: Number of the evaluation that is interrupted, from 1.
        wrong_at: Step after which a split weight is infinite in the part of the second process.
        muon: Train matrices with Muon.
    """
    model = tiny_model()
    if lora_rank:
        torch.manual_seed(0)
        LoRA(model.requires_grad_(False), FAMILIES["llada"], rank=lora_rank, alpha=lora_rank)
    accelerator = accelerator_of(splits=splits, precision=precision)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimisers: Any = [AdamW(trained, lr=0.01)]
    if muon:
        optimisers = make_optimisers(model, matrix_lr=0.01, other_lr=0.01)
    steps, prompts = list[int](), [list(one.prompt) for one in reversals()]

    def spoil(optimiser: Optimizer, *_: object) -> None:
        steps.append(1)
        if len(steps) == wrong_at and accelerator.process_index == 1:
            optimiser.param_groups[0]["params"][0].detach().to_local().fill_(torch.inf)

    optimisers[0].register_step_post_hook(spoil)

    def evaluate(progress: Progress) -> Mapping[str, float]:
        """Decodes nothing on the first process and twice on the second one."""
        if len(progress.history) + 1 == ends_at:
            raise KeyboardInterrupt
        found = 0.0
        for start in range(2 * accelerator.process_index):
            output = decode(
                model, prompts[start : start + 2], EntropyThreshold(0.5), gen_length=GEN_LENGTH,
                block_length=4,
            )  # fmt: skip
            found += float(output.nfe.sum())
        assert (found > 0) == (accelerator.process_index == 1)
        return {}

    source = Lessons(
        reversals(), gen_length=GEN_LENGTH, eos_id=EOS, num_rows=4, num_forwards=2
    )  # fmt: skip
    train(
        objective_of(model, "dparallel"), optimisers, source,
        Settings(num_samples=64, folder=folder, evaluate_every=2), accelerator=accelerator,
        evaluate=evaluate,
    )  # fmt: skip
    return weights_of(model)


def compare(folder: Path) -> None:
    """Trains each way in this process, which is one of two."""
    for name, options in WAYS.items():
        whole = run(folder / f"{name}-whole", splits=False, **options)
        with pytest.raises(KeyboardInterrupt):
            run(folder / f"{name}-split", ends_at=2, **options)
        split = run(folder / f"{name}-split", **options)
        # Sums over parts round otherwise; a hundredth of one step of the optimiser.
        assert_same(split, whole, rtol=0.0, atol=1e-4)
        # A run that has ended gives its weights, too.
        assert_same(run(folder / f"{name}-split", **options), split)


def refuse(folder: Path) -> None:
    """Makes every mistake in this process, which is one of two."""
    with pytest.raises(NotFiniteError, match="The weights must be finite, got inf at step 2"):
        run(folder / "wrong", wrong_at=2)
    with pytest.raises(ValueError, match="got version 2 and Muon, AdamW"):
        run(folder / "muon", muon=True)
    run(folder / "whole", splits=False)
    with pytest.raises(ValueError, match="got others: weights split by FSDP"):
        run(folder / "whole")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"compare": compare, "refuse": refuse}[sys.argv[1]](Path(sys.argv[2]))

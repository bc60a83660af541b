"""Checkpoints of a training run: small files, complete or absent."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

MAX_SHARD_BYTES = 15_000_000


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: Optimiser steps done.
        samples: Rows used.
        elapsed_s: Seconds spent, evaluations included, over all sessions of the run.
        history: What was measured on the way, oldest first.
    """

    step: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(
    folder: Path, model: nn.Module, optimisers: Sequence[Optimizer], progress: Progress
) -> Path:
    """Writes `folder/step-...` and removes older ones; frozen weights are left out.

    The checkpoint appears under its name only when it is complete, so a run that is killed while
    writing leaves the one before. No file is larger than 15 MB (unless a single tensor is).
    """
    target = folder / f"step-{progress.step:08}"
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {f"model.{name}": tensor for name, tensor in _trained(model).items()}
    for i, optimiser in enumerate(optimisers):
        tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in _moments(optimiser)}
    for i, shard in enumerate(_shards(tensors)):
        save_file(shard, partial / f"{i:03}.safetensors")
    (partial / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for older in _checkpoints(folder):
        if older != target:
            shutil.rmtree(older)
    return target


def load_checkpoint(
    folder: Path, model: nn.Module, optimisers: Sequence[Optimizer]
) -> Progress | None:
    """Restores the latest checkpoint in place; None if there is none.

    Raises:
        ValueError: If its tensors are not those of the model and the optimisers.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    tensors: dict[str, Tensor] = {}
    for path in sorted(found[-1].glob("*.safetensors")):
        tensors |= load_file(path)
    weights = _below("model", tensors)
    expected = {name: tensor.shape for name, tensor in _trained(model).items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise ValueError(
            f"A checkpoint holds the tensors of the model that is trained, got others in "
            f"{str(found[-1])!r}. Pass the sizes it was made with, or another output folder."
        )
    model.load_state_dict(weights, strict=False)
    for i, optimiser in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below(f"optimiser.{i}", tensors).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
    return Progress(**json.loads((found[-1] / "progress.json").read_text(encoding="utf-8")))


def _trained(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, weight in named if not weight.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _moments(optimiser: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for index, entries in optimiser.state_dict()["state"].items():
        for key, tensor in entries.items():
            yield f"{index}.{key}", tensor


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = len(prefix) + 1
    return {name[start:]: t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _shards(tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        if shard and size_bytes + tensor.nbytes > MAX_SHARD_BYTES:
            yield shard
            shard, size_bytes = {}, 0
        # A copy: tied weights share memory, which safetensors refuses.
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size_bytes += tensor.nbytes
    yield shard

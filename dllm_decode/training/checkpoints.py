"""Checkpoints of a training run: small files, complete or absent."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

MAX_SHARD_BYTES = 15_000_000
FORMAT = 2
PROGRESS_FILE = "progress.json"

# By field of `progress.json` its types. True is no number.
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "step": (int,), "samples": (int,), "elapsed_s": (int, float), "history": (list,),
    "optimisers": (list,), "tensors": (dict,),
}  # fmt: skip


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
    target = folder / _name_of(progress.step)
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {f"model.{name}": tensor for name, tensor in _trained(model).items()}
    for i, optimiser in enumerate(optimisers):
        tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in _moments(optimiser)}
    for i, shard in enumerate(_shards(tensors)):
        save_file(shard, partial / f"{i:03}.safetensors")
    written = {
        "format": FORMAT,
        **asdict(progress),
        "optimisers": _kinds_of(optimisers),
        "tensors": _described(tensors),
    }
    (partial / PROGRESS_FILE).write_text(json.dumps(written), encoding="utf-8")
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
        ValueError: If a part of it is missing or damaged, or its tensors are not those of the model
            and the optimisers.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    written = _read_progress(found[-1])
    tensors = _read_tensors(found[-1], written["tensors"])
    weights = _below("model", tensors)
    if _described(weights) != _described(_trained(model)):
        raise ValueError(
            f"A checkpoint holds the tensors of the model that is trained, got others in "
            f"{str(found[-1])!r}. Pass the sizes it was made with, or another output folder."
        )
    if written["optimisers"] != _kinds_of(optimisers):
        raise ValueError(
            f"The optimisers must be those of the checkpoint {found[-1]}, {written['optimisers']}, "
            f"got {_kinds_of(optimisers)}. Pass these, or another output folder."
        )
    model.load_state_dict(weights, strict=False)
    for i, optimiser in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below(f"optimiser.{i}", tensors).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
    return Progress(written["step"], written["samples"], written["elapsed_s"], written["history"])


def _read_progress(checkpoint: Path) -> dict[str, Any]:
    """Reads how far a checkpoint is, and the tensors that it consists of.

    Raises:
        ValueError: If the file is damaged, or was written by another version.
    """
    file = checkpoint / PROGRESS_FILE
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} must be JSON, got {error}. {_remedy(checkpoint)}") from None
    if not isinstance(written, dict) or written.get("format") != FORMAT:
        raise ValueError(
            f"{file} must be in format {FORMAT}, which lists all parts of the checkpoint, got "
            f"{str(written)[:40]}. Go on with the version that wrote it, or remove {checkpoint} to "
            "begin the training anew."
        )
    wrong = [name for name, kinds in _FIELDS.items() if type(written.get(name)) not in kinds]
    if not wrong:
        holds = {
            "step": checkpoint.name == _name_of(written["step"]),
            "samples": written["samples"] >= 0,
            "elapsed_s": 0 <= written["elapsed_s"] < math.inf,
            "history": all(map(_holds_numbers, written["history"])),
        }
        wrong = [name for name, is_right in holds.items() if not is_right]
    if wrong:
        raise ValueError(
            f"{file} must have {wrong[0]!r} as this version writes it, got "
            f"{str(written.get(wrong[0]))[:40]}. {_remedy(checkpoint)}"
        )
    return written


def _read_tensors(checkpoint: Path, wanted: Mapping[str, str]) -> dict[str, Tensor]:
    """Reads weights and moments.

    Raises:
        ValueError: If a file is damaged, or the tensors are not all those that were written.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path} must be a whole safetensors file, got {error}. {_remedy(checkpoint)}"
            ) from None
    found = _described(tensors)
    differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if differing:
        name, others = differing[0], len(differing) - 1
        raise ValueError(
            f"{checkpoint} must hold {name!r} ({wanted.get(name, 'nothing')}) to go on, got "
            f"{found.get(name, 'nothing')}; {others} more tensors differ. {_remedy(checkpoint)}"
        )
    return tensors


def _remedy(checkpoint: Path) -> str:
    return f"Restore it from a copy, or remove {checkpoint} to begin the training anew."


def _holds_numbers(past: object) -> bool:
    return isinstance(past, dict) and all(type(one) in (int, float) for one in past.values())


def _name_of(step: int) -> str:
    return f"step-{step:08}"


def _kinds_of(optimisers: Sequence[Optimizer]) -> list[str]:
    """Describes optimisers as far as their moments depend on them."""
    numbers = [sum(len(group["params"]) for group in one.param_groups) for one in optimisers]
    return [
        f"{type(one).__name__} of {number} weights"
        for one, number in zip(optimisers, numbers, strict=True)
    ]


def _described(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for name, one in tensors.items()
    }


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

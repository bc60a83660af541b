"""Checkpoints of a training run: complete or absent, and refused by name if a file was changed."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from dllm_decode.core.files import sync

RECORD_FILE = "progress.json"


class Progress(msgspec.Struct):
    """How far a run is.

    Attributes:
        step: Optimiser steps done.
        samples: Rows used.
        history: What was measured on the way, oldest first.
    """

    step: int = 0
    samples: int = 0
    history: list[dict[str, float]] = msgspec.field(default_factory=list)


class _Record(Progress, forbid_unknown_fields=True, kw_only=True):
    """The file that completes a checkpoint: progress, what is trained, digests of the files."""

    format: Literal[4]
    trained: list[str]
    files: dict[str, str]


class Checkpoints:
    """The latest state of a run, as an accelerator saves the parts that it has prepared.

    A checkpoint appears under its name only when it is complete, so a run that is killed while
    writing leaves the previous one. Weights are in safetensors files, moments and the states of
    random generators in pickles. Frozen weights are left out.
    """

    def __init__(
        self,
        folder: Path,
        accelerator: Accelerator,
        model: nn.Module,
        optimisers: Sequence[Optimizer],
    ) -> None:
        self._folder, self._accelerator, self._model = folder, accelerator, model
        self._trained = describe(model, optimisers)
        accelerator.register_save_state_pre_hook(self._leave_out)
        accelerator.register_load_state_pre_hook(self._unwrap)

    def save(self, progress: Progress) -> None:
        """Writes `folder/step-...` and removes older ones; every process takes part."""
        target, partial = self._folder / f"step-{progress.step:08}", self._folder / "partial"
        is_main = self._accelerator.is_main_process
        if is_main:
            shutil.rmtree(partial, ignore_errors=True)
        self._accelerator.wait_for_everyone()
        try:
            self._accelerator.save_state(str(partial))
        except (OSError, RuntimeError, SafetensorError) as error:
            # Torch and safetensors have their own errors for a full disk.
            raise OSError(
                f"{str(self._folder)!r} must be a place that can be written, with room for a "
                f"checkpoint, got: {error}. The earlier checkpoint is unchanged."
            ) from error
        self._accelerator.wait_for_everyone()
        if is_main:
            record = _Record(
                **msgspec.structs.asdict(progress), format=4, trained=self._trained,
                files=_digests(partial),
            )  # fmt: skip
            (partial / RECORD_FILE).write_bytes(msgspec.json.encode(record))
            for file in (*partial.rglob("*"), partial):
                sync(file)
            partial.rename(target)
            for older in {*self._folder.glob("step-*")} - {target}:
                shutil.rmtree(older)
        self._accelerator.wait_for_everyone()

    def load(self) -> Progress:
        """Restores the latest checkpoint in place, if there is one, and returns its progress.

        Raises:
            ValueError: If a file is missing or changed, or the checkpoint is of another model,
                other optimisers or another version.
        """
        latest = max(self._folder.glob("step-*"), default=None)
        if latest is None:
            return Progress()
        record = _read(latest)
        if differing := {*self._trained} ^ {*record.trained}:
            raise ValueError(
                f"{latest} must be of the model and the optimisers that are trained, got others: "
                f"{', '.join(sorted(differing)[:4])}. Pass the sizes and optimisers it was made "
                "with, or another output folder."
            )
        self._accelerator.load_state(str(latest), strict=False)
        return Progress(record.step, record.samples, record.history)

    def _leave_out(self, models: list[Any], states: list[dict[str, Tensor]], _: str) -> None:
        states[:] = [_without_frozen(self._model) for _ in states]

    def _unwrap(self, models: list[Any], _: str) -> None:
        # Unwrapped as in the checkpoint, because the number of processes may have changed.
        models[:] = [self._model for _ in models]


def describe(model: nn.Module, optimisers: Sequence[Optimizer]) -> list[str]:
    """Names trained weights with dtypes and sizes, and optimisers with their numbers of weights."""
    lines = [
        f"{name} {str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
        for name, weight in _without_frozen(model).items()
    ]
    for optimiser in optimisers:
        num_weights = sum(len(group["params"]) for group in optimiser.param_groups)
        lines.append(f"{type(optimiser).__name__} of {num_weights} weights")
    return lines


def _read(checkpoint: Path) -> _Record:
    file = checkpoint / RECORD_FILE
    remedy = (
        "Restore it from a copy, go on with the version that wrote it, or remove "
        f"{checkpoint} to begin the training anew."
    )
    try:
        record = msgspec.json.decode(file.read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} must be as this version writes it, got {error}. {remedy}"
        ) from None
    digests = _digests(checkpoint)
    for name in sorted({*record.files, *digests}):
        if record.files.get(name) != digests.get(name):
            got = "another content" if name in digests else "nothing"
            raise ValueError(f"{checkpoint / name} must be as it was written, got {got}. {remedy}")
    return record


def _digests(checkpoint: Path) -> dict[str, str]:
    digests = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and file.name != RECORD_FILE:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            digests[str(file.relative_to(checkpoint))] = digest
    return digests


def _without_frozen(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, weight in named if not weight.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}

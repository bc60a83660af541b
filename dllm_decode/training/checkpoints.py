"""Checkpoints of a training run: complete or absent."""

import shutil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import msgspec
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn

from dllm_decode.core.files import sync

PROGRESS_FILE = "progress.json"


class Progress(msgspec.Struct, forbid_unknown_fields=True):
    """How far a run is.

    Attributes:
        step: Optimiser steps done.
        samples: Rows used.
        history: What was measured on the way, oldest first.
    """

    step: int = 0
    samples: int = 0
    history: list[dict[str, float]] = msgspec.field(default_factory=list)


# Errors by which msgspec, torch and safetensors refuse a file.
_UNREADABLE = (
    msgspec.MsgspecError, OSError, ValueError, RuntimeError, EOFError, UnpicklingError,
    SafetensorError,
)  # fmt: skip


class Checkpoints:
    """The latest state of a run, as an accelerator saves the parts that it has prepared.

    A checkpoint appears under its name only when it is complete, so a run that is killed while
    writing leaves the previous one. Weights are in safetensors files, moments and the states of
    random generators in pickles. Frozen weights are left out.
    """

    def __init__(self, folder: Path, accelerator: Accelerator, model: nn.Module) -> None:
        self._folder, self._accelerator, self._model = folder, accelerator, model
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
            (partial / PROGRESS_FILE).write_bytes(msgspec.json.encode(progress))
            for file in (*partial.rglob("*"), partial):
                sync(file)
            partial.rename(target)
            for older in {*self._folder.glob("step-*")} - {target}:
                shutil.rmtree(older)
        self._accelerator.wait_for_everyone()

    def load(self) -> Progress:
        """Restores the latest checkpoint in place, if there is one, and returns its progress.

        Raises:
            ValueError: If a file is missing or damaged, or the checkpoint is of another model,
                other optimisers or another version.
        """
        latest = max(self._folder.glob("step-*"), default=None)
        if latest is None:
            return Progress()
        try:
            progress = msgspec.json.decode((latest / PROGRESS_FILE).read_bytes(), type=Progress)
            self._accelerator.load_state(str(latest), strict=False)
        except _UNREADABLE as error:
            raise ValueError(
                f"{latest} must be a whole checkpoint of this training, got: {error}. Restore it "
                "from a copy, go on with the settings and the version that wrote it, or remove it "
                "to begin the training anew."
            ) from error
        return progress

    def _leave_out(self, models: list[Any], states: list[dict[str, Tensor]], _: str) -> None:
        states[:] = [_trained(self._model) for _ in states]

    def _unwrap(self, models: list[Any], _: str) -> None:
        # Unwrapped as in the checkpoint, because the number of processes may have changed.
        models[:] = [self._model for _ in models]


def _trained(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, weight in named if not weight.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}

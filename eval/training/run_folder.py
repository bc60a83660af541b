"""A folder in which a run is kept, so that the same command goes on where it stopped."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from dllm_decode.settings.files import only_writer, read_object, write_json

SETTINGS_FILE = "settings.json"
TRAINING_FILE = "training_settings.json"
_LOCK_FILE = ".lock"
DIGEST = "digest"
"""Ends the name of a setting whose value means nothing to a reader."""
_UNSET = "unset"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes the folder and gives it to this process alone.

    Raises ValueError if the folder holds something else than a run of these commands, cannot be
    written, or is written by another process.
    """
    try:
        names = {file.name for file in folder.iterdir()} if folder.exists() else set()
        # A command that is killed early leaves the lock, and the settings under a longer name.
        own = (_LOCK_FILE, f".{SETTINGS_FILE}.")
        foreign = {name for name in names if not name.startswith(own)}
        if foreign and SETTINGS_FILE not in names:
            raise ValueError(
                f"--output must be new or hold a run of this command, got {folder} without "
                f"{SETTINGS_FILE}; choose another."
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--output must be in a folder that can be written, got {folder} ({error.strerror}); "
            "choose another."
        ) from None
    refusal = (
        f"--output must have one writer, got {folder} while another process writes it; wait for "
        "that process, or choose another."
    )
    with only_writer(folder / _LOCK_FILE, refusal):
        yield


def claim(folder: Path, collecting: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Writes the settings of a new run, or checks that they equal those of the run in the folder.

    `collecting` has the settings of the part before the training, `training` all others, which may
    change until `claim_training` is called. Raises ValueError if the folder has other settings.
    """
    file = folder / SETTINGS_FILE
    changed = _changes(file, collecting) + _changes(folder / TRAINING_FILE, training)
    if changed:
        raise ValueError(
            f"The run in {folder} must have the settings of this command to go on, got others: "
            f"{', '.join(changed)}. Choose another --output, or remove the folder."
        )
    write_json(file, collecting)


def claim_training(folder: Path, training: Mapping[str, Any]) -> None:
    """Writes the settings of the training when it begins; `claim` has compared them."""
    write_json(folder / TRAINING_FILE, training)


def _changes(file: Path, settings: Mapping[str, Any]) -> list[str]:
    """Lists the settings that differ from those in the file; empty without the file."""
    if not file.exists():
        return []
    stored = read_object(file, remedy="remove the folder")
    was, now = (dict(_leaves(options)) for options in (stored, json.loads(json.dumps(settings))))
    pairs = [(name, was.get(name, _UNSET), now.get(name, _UNSET)) for name in {**was, **now}]
    changed = [change for change in pairs if change[1] != change[2]]
    # Names a digest that differs only if nothing else differs.
    readable = [change for change in changed if not change[0].endswith(DIGEST)]
    return [f"{name}: {old} -> {new}" for name, old, new in readable or changed]


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields every value of nested objects with its path, such as "task limit"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name} ")
        else:
            # Both "" and null mean that nothing was chosen.
            yield f"{prefix}{name}", _UNSET if value in ("", None) else value


def run_on_first(accelerator: Accelerator, act: Callable[[], object]) -> None:
    """Calls `act` on the first process only; if it fails there, all processes end.

    If `act` raises ValueError or OSError, raises ValueError on the first process, and SystemExit on
    the others, which would otherwise wait for the first process.
    """
    refusals: list[str | None] = [None]
    if accelerator.is_main_process:
        try:
            act()
        except (ValueError, OSError) as error:
            refusals = [str(error)]
    (refusal,) = broadcast_object_list(refusals)
    if refusal is not None:
        raise ValueError(refusal) if accelerator.is_main_process else SystemExit(2)

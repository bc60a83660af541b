"""A folder in which a run is kept, so that the same command goes on where it stopped."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.runs.files import is_of, only_writer, read_object, write_json
from samplers.checks import shown

SETTINGS_FILE = "settings.json"
TRAINING_FILE = "training_settings.json"
ANEW = "remove the file, and the same command makes it anew"
_LOCK_FILE = ".lock"
DIGEST = "digest"
"""Ends the name of a setting whose value means nothing to a reader."""
_UNSET = "unset"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes the folder and gives it to this process alone.

    Raises:
        ValueError: If the folder holds something else, cannot be written, or is written by another
            process.
    """
    try:
        require_own(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK_FILE).touch()
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


def require_own(folder: Path) -> None:
    """Raises ValueError unless a folder is new, or holds a run of these commands."""
    if not folder.exists() or (folder / SETTINGS_FILE).exists():
        return
    # A command that is killed early leaves these.
    names = {file.name for file in folder.iterdir()} - {_LOCK_FILE}
    if any(not name.startswith(f"{SETTINGS_FILE}.") for name in names):
        raise ValueError(
            f"--output must be new or hold a run of this command, got {folder} without "
            f"{SETTINGS_FILE}; choose another."
        )


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Makes the folder, or checks that what lies in it is of the same run.

    Args:
        folder: Made if need be.
        settings: What decides the answers that are collected first, ready for JSON.

    Raises:
        ValueError: If the folder holds a run with other settings, or something else.
    """
    require_own(folder)
    _keep(folder / SETTINGS_FILE, settings)


def claim_training(folder: Path, settings: Mapping[str, Any]) -> None:
    """Notes the settings of a training that begins, or checks that it is the one that began.

    Until then they may change: answers that were collected stay as they are.

    Args:
        folder: A folder that `claim` made.
        settings: What decides the result beside the answers, ready for JSON.

    Raises:
        ValueError: If a training with other settings has begun there.
    """
    _keep(folder / TRAINING_FILE, settings)


def _keep(file: Path, settings: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        write_json(file, wanted)
        return
    was, now = dict(_leaves(read_json(file))), dict(_leaves(wanted))
    changed = [
        (name, was.get(name, _UNSET), now.get(name, _UNSET))
        for name in {**was, **now}
        if was.get(name, _UNSET) != now.get(name, _UNSET)
    ]
    # A digest that differs says something only where nothing else does.
    told = [one for one in changed if not one[0].endswith(DIGEST)]
    if changed:
        listed = ", ".join(f"{name}: {old} -> {new}" for name, old, new in told or changed)
        raise ValueError(
            f"The run in {file.parent} must have the settings of this command to go on, got "
            f"others: {listed}. Choose another --output, or remove the folder."
        )


def _leaves(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Names every value of nested objects, as in "task limit"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name} ")
        else:
            # Nothing was chosen, whether it is written as "" or as null.
            yield f"{before}{name}", _UNSET if value in ("", None) else value


def read_json(
    file: Path, fields: Mapping[str, Any] | None = None, *, remedy: str = "remove the folder"
) -> dict[str, Any]:
    """Reads a file that `write_json` wrote.

    Args:
        file: The file.
        fields: By name the types of its fields, as in `is_of`; `None`: any.
        remedy: How to go on without it, for the message.

    Raises:
        ValueError: If it is damaged, or has other fields.
    """
    found: dict[str, Any] = read_object(file, remedy=remedy)
    if fields is not None:
        require_fields(found, fields, file, remedy=remedy)
    return found


def require_fields(
    found: object, fields: Mapping[str, Any], file: Path, *, remedy: str = ANEW
) -> None:
    """Raises ValueError unless an object of a file has these fields, each of its type."""
    if not isinstance(found, dict) or found.keys() != fields.keys():
        names = ", ".join(fields)
        raise ValueError(f"{file} must hold {names}, and no more, got {shown(found)}; {remedy}.")
    for name, kind in fields.items():
        if not is_of(found[name], kind):
            raise ValueError(
                f"{file} must have {name!r} as this version writes it, got {shown(found[name])}; "
                f"{remedy}."
            )

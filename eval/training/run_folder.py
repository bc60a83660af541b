"""A folder in which a run is kept, so that the same command goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS_FILE = "settings.json"


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Makes the folder, or checks that what lies in it is of the same run.

    Args:
        folder: Made if need be.
        settings: What decides the result, ready for JSON.

    Raises:
        ValueError: If the folder holds a run with other settings, or something else.
    """
    file = folder / SETTINGS_FILE
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"--output must be new or hold a run of this command, got {folder} without "
                f"{SETTINGS_FILE}; choose another."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, wanted)
        return
    found = read_json(file)
    changed = [
        f"{name} was {found.get(name)!r} and is {wanted.get(name)!r}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if changed:
        raise ValueError(
            f"The run in {folder} must have the settings of this command to go on, got others: "
            f"{'; '.join(changed)}. Choose another --output, or remove the folder."
        )


def write_json(file: Path, content: object) -> None:
    """Writes a file that appears under its name only when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a file that `write_json` wrote.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got {error}; remove the folder.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} must hold a JSON object, got {str(found)[:40]}.")
    return found

"""Reads and writes files of JSON; a file appears under its name only when it is complete."""

import json
import os
from pathlib import Path
from typing import Any

from eval.runs.fields import is_of


def read_object(file: Path, values: Any = Any, *, remedy: str) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        file: A file that is there.
        values: The type of its values, as in `is_of`.
        remedy: What the user can do if the file is damaged.

    Raises:
        ValueError: If the file is damaged; names the file.
    """
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} must be JSON, got {error}; {remedy}.") from None
    if not is_of(found, dict[str, values]):
        raise ValueError(
            f"{file} must be as this version writes it, got {str(found)[:40]}; {remedy}."
        )
    return dict(found)


def write_json(file: Path, content: object) -> None:
    """Writes a file of JSON, see `write_text`."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Writes a file and makes its folder, so that no other process reads half of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def require_file(option: str, path: str) -> Path:
    """Returns where a file will be written; refuses it before the contents are computed.

    Raises:
        ValueError: If its folder is not there, or it is a folder.
    """
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"{option} must be a file in a folder that is there, got {path!r}.")
    return file


def require_folder(path: Path) -> None:
    """Raises ValueError if a file is where a folder will be made."""
    nearest = next(one for one in (path, *path.parents) if one.exists())
    if not nearest.is_dir():
        raise ValueError(f"{path} must be a folder, or be new, got the file {nearest}.")

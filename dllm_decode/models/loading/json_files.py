"""Reads the JSON files of a checkpoint; loads no torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; ValueError if the file has none, FileNotFoundError without a file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"A model folder holds a {path.name}, got {str(path.parent)!r} without one. "
            "Pass the folder that the checkpoint's files are in."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(
            f"{str(path)!r} must not be nested deeper than Python reads. Download it again."
        ) from None
    except ValueError as error:
        refuse_pointer(path)
        raise ValueError(
            f"{str(path)!r} is not valid JSON ({error}). Download it again."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} must hold a JSON object, got a {type(content).__name__}.")
    return content


def write_sorted_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes an object with sorted keys."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def refuse_pointer(path: Path) -> None:
    """Raises ValueError if a file was cloned without its content."""
    with path.open("rb") as file:
        if file.read(24).startswith(b"version https://git-lfs"):
            raise ValueError(
                f"{str(path)!r} must hold its content, got a pointer of Git LFS. Run `git lfs "
                "pull` in its folder, or download the file from the hub."
            )

"""Files that the commands name: sweeps and results folders. Nothing heavy is imported."""

import tomllib
from pathlib import Path
from typing import Any

SETTINGS_FILE = "settings.json"
"""The file of a results folder that lists the runs."""


def require_results(folder: Path) -> None:
    """Raises ValueError if a path is no results folder."""
    if not (folder / SETTINGS_FILE).is_file():
        raise ValueError(
            f"A results folder must hold {SETTINGS_FILE}, got {folder} without it; "
            "give the folder that a run wrote."
        )


def toml_of(path: str | Path) -> dict[str, Any]:
    """Returns the entries of a sweep file, or raises ValueError if it is missing or no TOML."""
    file = Path(path)
    if not file.is_file():
        got = "is a folder" if file.is_dir() else "does not exist"
        raise ValueError(f"A sweep must be a TOML file, got {path}, which {got}.")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise ValueError(f"{path} must not be nested deeper than Python reads.") from None
    except ValueError as error:
        raise ValueError(f"{path} must be valid TOML: {error}.") from None

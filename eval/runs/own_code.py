"""Notes the source of a user's own plug-ins, so that an edited one is not taken for the old one.

Records are found again by the repr of their plug-ins, which an edit of `step` leaves as it is.
"""

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from eval.runs.models import parse_model
from eval.runs.settings import Run

OWN_CODE_FILE = "own_code.json"

Sources: TypeAlias = dict[str, str]
"""By module the digest of its file."""

_PACKAGES = ("samplers", "dllm_decode", "eval")


def sources_of(run: Run) -> Sources:
    """Returns the files that define the user's own classes among a run's plug-ins and its task.

    A model family of the user's own counts too.

    What these files import is not looked at, nor is a class that no file defines.
    """
    plugins = (run.sampler, run.cache, run.verifier, run.blocks, run.selection.task)
    modules = {module for plugin in plugins for module in _modules_of(plugin)}
    own_family = parse_model(run.model_source).own_module if run.model_source else None
    modules |= {own_family} if own_family else set()
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {
        module: blake2b(Path(file).read_bytes(), digest_size=12).hexdigest()
        for module, file in sorted(files.items())
        if file is not None and Path(file).is_file()
    }


def require_unchanged(
    folder: Path, sources: Mapping[str, Sources], kept: Collection[str]
) -> dict[str, Sources]:
    """Checks that records which are kept were made by the plug-ins as they are now.

    Args:
        folder: The results folder.
        sources: By setting (`Settings.key("")`) what `sources_of` returned.
        kept: Settings that have records which will not be decoded anew.

    Returns:
        What is known now of all settings of the folder, for `note`.

    Raises:
        ValueError: If a plug-in was edited since.
    """
    file = folder / OWN_CODE_FILE
    before: dict[str, Sources] = {}
    if file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
    for setting, now in sources.items():
        edited = [
            name for name, found in before.get(setting, now).items() if now.get(name) != found
        ]
        if edited and setting in kept:
            raise ValueError(
                f"{edited[0]} must be as it was when the records in {folder} were decoded, but its "
                "file was edited since: old answers would stand for the new code. Choose another "
                "folder. If all records are errors, --retry-errors decodes them anew."
            )
    return {**before, **{setting: now for setting, now in sources.items() if now}}


def note(folder: Path, sources: Mapping[str, Sources]) -> None:
    """Writes down what the plug-ins of a folder's settings were made of, if there are own ones."""
    if not sources:
        return
    file = folder / OWN_CODE_FILE
    # Renamed, so that another process never reads half a file.
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")
    beside.replace(file)


def _modules_of(plugin: object) -> Iterator[str]:
    """Yields the modules of a plug-in's own classes, and of those that it holds."""
    for kind in type(plugin).__mro__:
        if not _is_ours(kind) and any(_is_ours(base) for base in kind.__mro__):
            yield kind.__module__
    if is_dataclass(plugin):
        for field in fields(plugin):
            yield from _modules_of(getattr(plugin, field.name))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES

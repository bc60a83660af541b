"""The origin of a run: package, versions and device, and the code and the files that it read.

Records are found again by names: of a model, of a filter, of a plug-in's class. The thing that has
the name may change. For this reason a results folder keeps digests by setting: `own_code.json` has
those of the user's own plug-ins, `own_files.json` those of weights and other files that were read.
A folder without such notes can still be used, and gets the notes.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch

from dllm_decode.settings.files import digest_of_file, read_object, write_json
from dllm_decode.settings.plugins import own_modules, sources_of
from eval.runs.settings import Run

PACKAGE = "dllm-decode"
CODE_NOTE = "own_code.json"
FILES_NOTE = "own_files.json"

_RECORDED_PACKAGES = ("numpy", "tokenizers", "transformers", "triton")


@lru_cache(maxsize=1)
def package_commit() -> str | None:
    """Returns the commit of the checkout that this package is imported from; None without one.

    A `+` follows if files of the package have changed. A package in a virtual environment inside
    somebody's repository is not part of that repository.
    """
    root = Path(__file__).parents[2]
    # In a work tree `.git` is a file.
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", "samplers", "dllm_decode", "eval")
    return f"{commit}+" if commit and changed else commit or None


def _installed_version(package: str) -> str:
    """Returns the installed version of a package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def machine_of(device: str | torch.device) -> dict[str, Any]:
    """Describes the process that decodes: all but the date, which each record has."""
    device = torch.device(device)
    return {
        "package": _installed_version(PACKAGE),
        "commit": package_commit(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "host_platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "versions": {
            name: installed
            for name in _RECORDED_PACKAGES
            if (installed := _installed_version(name))
        },
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "command": " ".join(sys.argv[1:]),
    }


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def now() -> str:
    """Returns the date and the time, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(root: Path, *arguments: str) -> str:
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return completed.stdout.strip()


Digests: TypeAlias = Mapping[str, str]
"""By module or by file."""

Notes: TypeAlias = Mapping[str, dict[str, Digests]]
"""By name of the note and by setting, what the records of a folder were made of."""


def require_unchanged(folder: Path, runs: Mapping[str, Run], kept: Collection[str]) -> Notes:
    """Checks that kept records were made with the current code and files.

    `runs` has the run by setting (`RunSettings.key("")`); `kept` are settings that have records
    which will not be decoded anew. Raises ValueError if the code of a plug-in, or a file that was
    read, changed since. Returns the notes of all settings of the folder, to be written by
    `write_notes`.
    """
    # Each file is read once, however many settings read it.
    digest = cache(digest_of_file)
    notes = {name: _digests_of(folder / name) for name in (CODE_NOTE, FILES_NOTE)}
    for setting, run in runs.items():
        files = files_of(run)
        plugins = (run.sampler, run.cache, run.verifier, run.blocks, run.selection.task)
        current = {
            CODE_NOTE: sources_of(plugins, run.model_source or ""),
            FILES_NOTE: {name: digest(file) for name, file in files.items()},
        }
        for note, digests in current.items():
            changes = _changes(notes[note].get(setting, {}), digests) if setting in kept else {}
            for name, change in changes.items():
                is_task = name in own_modules(run.selection.task)
                task_hint = ", or raise `version` of the task" if is_task else ""
                raise ValueError(
                    f"{files.get(name, name)} must be as it was when the records in {folder} were "
                    f"decoded, but {change} since, so that old and new answers would be mixed. "
                    f"Choose another folder{task_hint}."
                )
            if digests:
                notes[note][setting] = digests
    return notes


def write_notes(folder: Path, notes: Notes) -> None:
    """Writes the notes of a folder."""
    for name, by_setting in notes.items():
        if by_setting:
            write_json(folder / name, by_setting)


def files_of(run: Run) -> dict[str, Path]:
    """Returns the files that the model, the sampler and the verifier of a run were read from.

    Names are such as "model/config.json", without the folder, because a copy is the same model.
    Repeated names are numbered.
    """
    parts = {
        "model": run.files,
        "sampler": run.sampler.files if run.verifier.asks_sampler else (),
        "verifier": run.verifier.files,
    }
    by_name: dict[str, Path] = {}
    for part, files in parts.items():
        for index, file in enumerate(files):
            num_before = sum(earlier.name == file.name for earlier in files[:index])
            by_name[f"{part}/{file.name}" + f" ({num_before + 1})" * bool(num_before)] = file
    return by_name


def _changes(before: Digests, after: Digests) -> dict[str, str]:
    """Returns by name how a module or a file changed since a note, if there was one."""
    # A run in Python need not say which files its model, "model/...", was read from.
    old_parts, new_parts = ({name.partition("/")[0] for name in names} for names in (before, after))
    changes = {}
    for name in {**before, **after}:
        part, is_file, _ = name.partition("/")
        if before.get(name) == after.get(name) or (is_file and part not in old_parts & new_parts):
            continue
        if is_file:
            verb = "added" if name not in before else "changed" if name in after else "removed"
            changes[name] = f"it was {verb}"
        elif before:
            changes[name] = "its file was edited"
    return changes


def _digests_of(file: Path) -> dict[str, Digests]:
    if not file.is_file():
        return {}
    remedy = (
        "it says which code and files the records were made with: choose another folder, or remove "
        "the file if nothing has changed since"
    )
    digests: dict[str, Digests] = read_object(file, dict[str, dict[str, str]], remedy=remedy)
    return digests

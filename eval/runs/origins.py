"""Notes what a folder's records were made of, so that old ones are not taken for new ones.

Records are found again by names: of a model, of a filter, of a plug-in's class. What a name stands
for may change. So a results folder keeps digests, by setting: `own_code.json` those of the user's
own plug-ins, `own_files.json` those of weights and other files that were read. A folder without
such notes goes on, and gets them.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeAlias

from eval.runs.files import read_object, write_json
from eval.runs.models import parse_model
from eval.runs.settings import Run

CODE_NOTE = "own_code.json"
FILES_NOTE = "own_files.json"

_PACKAGES = ("samplers", "dllm_decode", "eval")
_NUM_PIECES = 1024
_PIECE_BYTES = 16 * 1024
_RETRY = "If all records are errors, --retry-errors decodes them anew."

Digests: TypeAlias = Mapping[str, str]
"""By module or by file."""


class Origins(NamedTuple):
    """What the records of a folder were made of: by setting the digests of code and of files."""

    code: Mapping[str, Digests]
    files: Mapping[str, Digests]

    def note(self, folder: Path) -> None:
        """Writes the notes of a folder."""
        for name, found in ((CODE_NOTE, self.code), (FILES_NOTE, self.files)):
            if found:
                write_json(folder / name, found)


def require_unchanged(folder: Path, runs: Mapping[str, Run], kept: Collection[str]) -> Origins:
    """Checks that records which are kept were made by what is there now.

    Args:
        folder: The results folder.
        runs: By setting (`Settings.key("")`) what is to be run.
        kept: Settings that have records which will not be decoded anew.

    Returns:
        What is known now of all settings of the folder.

    Raises:
        ValueError: If the code of a plug-in, or a file that was read, changed since.
    """
    before = Origins(_read(folder / CODE_NOTE), _read(folder / FILES_NOTE))
    files = {setting: files_of(run) for setting, run in runs.items()}
    # Each file is read once, however many settings read it.
    known = {file: digest_of(file) for own in files.values() for file in own.values()}
    now = Origins(
        {setting: sources_of(run) for setting, run in runs.items()},
        {setting: {n: known[file] for n, file in own.items()} for setting, own in files.items()},
    )
    for setting in (one for one in runs if one in kept):
        _require_code(folder, runs[setting], before.code.get(setting, {}), now.code[setting])
        _require_files(folder, runs[setting], before.files.get(setting, {}), now.files[setting])
    return Origins(*(
        {**old, **{setting: own for setting, own in new.items() if own}}
        for old, new in zip(before, now, strict=True)
    ))  # fmt: skip


def sources_of(run: Run) -> dict[str, str]:
    """Returns, by module, digests of the files that define the user's own classes in a run.

    These are its plug-ins, its task and its model family. What their files import is not looked at,
    nor is a class that no file defines.
    """
    plugins = (run.sampler, run.cache, run.verifier, run.blocks, run.selection.task)
    modules = {module for plugin in plugins for module in _own_modules(plugin)}
    own_family = parse_model(run.model_source).own_module if run.model_source else None
    modules |= {own_family} if own_family else set()
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {
        module: blake2b(Path(file).read_bytes(), digest_size=12).hexdigest()
        for module, file in sorted(files.items())
        if file is not None and Path(file).is_file()
    }


def files_of(run: Run) -> dict[str, Path]:
    """Returns the files that the model, the sampler and the verifier of a run were read from.

    Names are such as "model/config.json", wherever the folder is: a copy is the same model. A name
    that comes again is numbered.
    """
    parts = {
        "model": run.files,
        "sampler": run.sampler.files if run.verifier.asks_sampler else (),
        "verifier": run.verifier.files,
    }
    found: dict[str, Path] = {}
    for part, own in parts.items():
        for index, file in enumerate(own):
            num_before = sum(other.name == file.name for other in own[:index])
            found[f"{part}/{file.name}" + f" ({num_before + 1})" * bool(num_before)] = file
    return found


def digest_of(file: Path) -> str:
    """Returns a digest of a file's size and contents; when it was written does not count.

    Up to 16 MiB are read whole. A larger file, such as 16 GB of weights, is known by 1024 pieces of
    16 KiB, evenly from its first byte to its last: training changes weights nearly everywhere. A
    change that misses every piece, such as that of a single norm in a large file, is not noticed.
    """
    size = file.stat().st_size
    found = blake2b(str(size).encode(), digest_size=12)
    starts: Iterable[int] = range(0, size, _PIECE_BYTES)
    if size > _NUM_PIECES * _PIECE_BYTES:
        starts = (i * (size - _PIECE_BYTES) // (_NUM_PIECES - 1) for i in range(_NUM_PIECES))
    with file.open("rb", buffering=0) as opened:
        for start in starts:
            opened.seek(start)
            found.update(opened.read(_PIECE_BYTES))
    return found.hexdigest()


def _own_modules(plugin: object) -> Iterator[str]:
    """Yields the modules of a plug-in's own classes, and of those that it holds."""
    for kind in type(plugin).__mro__:
        if not _is_ours(kind) and any(_is_ours(base) for base in kind.__mro__):
            yield kind.__module__
    if is_dataclass(plugin):
        for field in fields(plugin):
            yield from _own_modules(getattr(plugin, field.name))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES


def _require_code(folder: Path, run: Run, before: Digests, now: Digests) -> None:
    edited = _changed(before, now) if before else []
    if edited:
        is_task = edited[0] in _own_modules(run.selection.task)
        other = ", or raise `version` of the task" if is_task else ""
        raise ValueError(
            f"{edited[0]} must be as it was when the records in {folder} were decoded, but its "
            "file was edited since: old answers would stand for the new code. Choose another "
            f"folder{other}. {_RETRY}"
        )


def _require_files(folder: Path, run: Run, before: Digests, now: Digests) -> None:
    # A run in Python need not say which files its model was read from.
    parts = _parts(before) & _parts(now)
    changed = [name for name in _changed(before, now) if _parts([name]) <= parts]
    if changed:
        name = changed[0]
        what = "added" if name not in before else "changed" if name in now else "removed"
        raise ValueError(
            f"{files_of(run).get(name, name)} must be as it was when the records in {folder} were "
            f"decoded, but it was {what} since: old answers would stand for what it holds "
            f"now. Choose another folder. {_RETRY}"
        )


def _parts(names: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def _changed(before: Digests, now: Digests) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def _read(file: Path) -> dict[str, Digests]:
    if not file.is_file():
        return {}
    remedy = (
        "without it nobody knows what the records were made of: choose another folder, or remove "
        "the file if nothing has changed since"
    )
    found: dict[str, Digests] = read_object(file, dict[str, dict[str, str]], remedy=remedy)
    return found

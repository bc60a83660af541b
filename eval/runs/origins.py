"""Notes what a folder's records were made of, so that old ones are not taken for new ones.

Records are found again by names: of a model, of a filter, of a plug-in's class. What a name stands
for may change. So a results folder keeps digests, by setting: `own_code.json` those of the user's
own plug-ins, `own_files.json` those of weights and other files that were read. A folder without
such notes goes on, and gets them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from eval.runs.files import read_object, write_json
from eval.runs.own_code import own_modules, sources_of
from eval.runs.own_files import digests_of, files_of
from eval.runs.settings import Run

CODE_NOTE = "own_code.json"
FILES_NOTE = "own_files.json"

Digests: TypeAlias = Mapping[str, str]
"""By module or by file."""


@dataclass(frozen=True)
class Origins:
    """What the records of a folder were made of.

    Attributes:
        code: By setting (`Settings.key("")`) what `sources_of` returned.
        files: By setting what `digests_of` returned.
    """

    code: Mapping[str, Digests]
    files: Mapping[str, Digests]

    @staticmethod
    def noted(folder: Path) -> "Origins":
        """Reads the notes of a folder."""
        return Origins(_read(folder / CODE_NOTE), _read(folder / FILES_NOTE))

    @staticmethod
    def of(runs: Mapping[str, Run]) -> "Origins":
        """Looks at code and files as they are now; settings without any are left out."""
        code = {setting: sources_of(run) for setting, run in runs.items()}
        files = digests_of(runs)
        return Origins(
            {setting: own for setting, own in code.items() if own},
            {setting: own for setting, own in files.items() if own},
        )

    def note(self, folder: Path) -> None:
        """Writes the notes of a folder."""
        for name, found in ((CODE_NOTE, self.code), (FILES_NOTE, self.files)):
            if found:
                write_json(folder / name, found)


def require_unchanged(folder: Path, runs: Mapping[str, Run], kept: Collection[str]) -> Origins:
    """Checks that records which are kept were made by what is there now.

    Args:
        folder: The results folder.
        runs: By setting what is to be run.
        kept: Settings that have records which will not be decoded anew.

    Returns:
        What is known now of all settings of the folder.

    Raises:
        ValueError: If the code of a plug-in, or a file that was read, changed since.
    """
    before, now = Origins.noted(folder), Origins.of(runs)
    for setting in (one for one in runs if one in kept):
        _require_code(folder, runs[setting], before.code.get(setting), now.code.get(setting))
        _require_files(folder, runs[setting], before.files.get(setting), now.files.get(setting))
    return Origins({**before.code, **now.code}, {**before.files, **now.files})


def _require_code(folder: Path, run: Run, before: Digests | None, now: Digests | None) -> None:
    edited = _changed(before or {}, now or {}) if before else []
    if edited:
        is_task = edited[0] in own_modules(run.selection.task)
        other = ", or raise `version` of the task" if is_task else ""
        raise ValueError(
            f"{edited[0]} must be as it was when the records in {folder} were decoded, but its "
            "file was edited since: old answers would stand for the new code. Choose another "
            f"folder{other}. {_RETRY}"
        )


def _require_files(folder: Path, run: Run, before: Digests | None, now: Digests | None) -> None:
    before, now = before or {}, now or {}
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


_RETRY = "If all records are errors, --retry-errors decodes them anew."


def _parts(names: Collection[str]) -> set[str]:
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

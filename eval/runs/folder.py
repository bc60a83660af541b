"""Results folders: the settings that were run, and the records of all processes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dllm_decode.core.files import mend_last_line
from dllm_decode.settings.files import (
    checked_value,
    digest,
    only_writer,
    read_object,
    require_folder_or_new,
    write_json,
)
from eval.runs.named_files import SETTINGS_FILE, require_results
from eval.runs.records import Record, read_parts
from eval.runs.settings import NEW_FOLDER, RunSettings

FORMAT = 5


class _SettingsFile(msgspec.Struct, kw_only=True):
    """The contents of `settings.json`: settings as `RunSettings.written` gives them.

    The reference is the first of the runs.
    """

    format: int = FORMAT
    runs: list[dict[str, Any]]


class Folder:
    """A results folder: `settings.json`, and `part-<rank>.jsonl` for each process.

    Killed at any moment, a process leaves at most a torn last line in its own part. Readers skip a
    torn last line; the process that goes on with the part removes it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def claim(self, runs: Iterable[RunSettings]) -> list[RunSettings]:
        """Adds runs to the folder, the reference first; returns the other runs of the folder.

        A run that an earlier command asked for stays if it has records, so that a corrected
        sweep, or one more sampler, needs no new folder. The first run of the folder stays first.
        Processes that share the folder call this while `writing`, because runs of a process that
        has just begun have no records yet. Raises ValueError if the path is no folder, or has
        another format.
        """
        self.require_usable()
        runs = list(dict.fromkeys(runs))
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / SETTINGS_FILE
        earlier: list[RunSettings] = []
        if file.exists():
            used = {record["settings"] for record in self.records()}
            earlier = [run for run in self.settings() if run.key("") in used]
        others = [run for run in earlier if run not in runs]
        # Next to other runs, new runs come last; otherwise these runs have their own order.
        listed = [*earlier, *(r for r in runs if r not in earlier)] if others else runs
        written = _SettingsFile(runs=[run.written() for run in listed])
        write_json(file, msgspec.to_builtins(written))
        return others

    def require_usable(self) -> None:
        """Checks that runs can be added, before anything is loaded for them.

        Raises ValueError if the path is a file, or a folder in another format.
        """
        require_folder_or_new(self.path)
        if (self.path / SETTINGS_FILE).exists():
            self.settings()
        elif any(self.path.glob("part-*.jsonl")):
            raise ValueError(
                f"A folder with records must hold {SETTINGS_FILE}, got {self.path} without it; "
                "choose another folder."
            )

    def settings(self) -> list[RunSettings]:
        """Returns the runs of the folder, the reference first.

        Raises ValueError if the path is no results folder, or one of another version.
        """
        where = str(self.path / SETTINGS_FILE)
        runs = self._read_settings().runs
        return [RunSettings.of(run, f"Run {i} of {where}") for i, run in enumerate(runs, start=1)]

    def results(self) -> dict[RunSettings, list[Record]]:
        """Returns the records of each run, the reference first.

        Raises ValueError if the folder is damaged, or a record belongs to no run of the
        folder, or its key does not fit its run and example.
        """
        by_run: dict[RunSettings, list[Record]] = {run: [] for run in self.settings()}
        by_key = {run.key(""): run for run in by_run}
        strays = []
        for where, record in read_parts(self.path):
            run = by_key.get(record["settings"])
            if run and record["key"] == run.key(record["example"]):
                by_run[run].append(record)
            else:
                strays.append(where)
        if strays:
            others = f" (and {len(strays) - 1} other lines)" if len(strays) > 1 else ""
            raise ValueError(
                f"{strays[0]}{others} must be of a setting in {self.path / SETTINGS_FILE}, got "
                "another: one of the two files was edited or damaged. Give the command again that "
                f"made the folder, which restores {SETTINGS_FILE} and keeps the records; if that "
                "does not help, move the line elsewhere to decode its example anew."
            )
        return by_run

    def records(self) -> list[Record]:
        """Returns all records, of all processes, each key once; see `read_parts`."""
        return [record for _, record in read_parts(self.path)]

    @contextmanager
    def writing(self, rank: int) -> Iterator[Path]:
        """Gives the file of a process, a torn last line removed, to this process alone.

        Makes the folder if need be. Raises ValueError if another process writes the file, or the
        folder is not usable.
        """
        self.require_usable()
        self.path.mkdir(parents=True, exist_ok=True)
        refusal = (
            f"A results folder must have one writer, got {self.path} while another process "
            f"writes part-{rank}.jsonl; wait for it, or choose another folder."
        )
        with only_writer(self.path / f".part-{rank}.lock", refusal):
            yield self.repair_part(rank)

    def repair_part(self, rank: int) -> Path:
        """Removes a torn last line from the file of a process; returns the file."""
        path = self.path / f"part-{rank}.jsonl"
        mend_last_line(path, b'{"key":')
        return path

    def note_machine(self, machine: Mapping[str, Any]) -> str:
        """Notes the machine and versions of a run; returns the name that records give it."""
        name = digest(machine)
        file = self.path / f"machine-{name}.json"
        if not file.exists():
            write_json(file, machine)
        return name

    def machines(self) -> dict[str, dict[str, Any]]:
        """Returns by name the machines and versions that the folder's runs were made on."""
        return {
            file.stem.removeprefix("machine-"): read_object(file, remedy="move it elsewhere")
            for file in sorted(self.path.glob("machine-*.json"))
        }

    def _read_settings(self) -> _SettingsFile:
        file = self.path / SETTINGS_FILE
        require_results(self.path)
        written = read_object(file, remedy="choose another folder")
        fmt = written.get("format")
        if fmt != FORMAT:
            raise ValueError(
                f"{file} must be in format {FORMAT}, got format {fmt}: its records were written "
                "by another version, and lack options that are compared here. Run anew into "
                "another folder, or read it with the version that wrote it."
            )
        return checked_value(written, _SettingsFile, str(file), NEW_FOLDER)

"""Records on disk: one line of JSON for each example and setting, appended and never changed."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
"""What `eval.runs.runner` writes for one example; see `eval.runs.runner.record_of`."""

SETTINGS_FILE = "settings.json"
FORMAT = 2

_NOTHING = ("", "NoCache()", "NoVerifier()")


@dataclass(frozen=True)
class Settings:
    """Everything that decides an answer, short of the machine: one row of a table.

    Attributes:
        model: Embedded name, folder or hub id.
        revision: Branch, tag or commit of a hub id.
        dtype: Of the parameters.
        task: Canonical address.
        task_version: The task's own version.
        examples: Digest of the examples' ids, prompts and targets.
        num_examples: How many there are.
        sampler: Its repr; empty if the verifier asks none.
        cache: Its repr.
        verifier: Its repr.
        gen_length: Answer length in tokens.
        block_length: Tokens per block.
        temperature: Of the proposals.
        seed: Of the noise.
        stop_at_eos: Whether rows stop at EOS.
        batch_size: Rows decoded together: which rows share a batch moves floating-point rounding.
        prompts: "chat" or "plain".
    """

    model: str
    revision: str | None
    dtype: str
    task: str
    task_version: int
    examples: str
    num_examples: int
    sampler: str
    cache: str
    verifier: str
    gen_length: int
    block_length: int
    temperature: float
    seed: int
    stop_at_eos: bool
    batch_size: int
    prompts: str

    def key(self, example_id: str) -> str:
        """Returns the key of an example's record under these settings."""
        return digest({"settings": asdict(self), "example": example_id})

    @property
    def parts(self) -> list[str]:
        """Sampler, cache and verifier, as far as there are any."""
        parts = (self.sampler, self.cache, self.verifier)
        return [text for text in parts if text not in _NOTHING]

    @staticmethod
    def of(written: Mapping[str, Any]) -> "Settings":
        """Reads what `asdict` wrote."""
        return Settings(**written)


def digest(value: object) -> str:
    """Returns a short hash of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(text.encode(), digest_size=12).hexdigest()


class Folder:
    """A results folder: `settings.json`, and `part-<rank>.jsonl` for each process.

    Killed at any moment, a process leaves at most a torn last line in its own part. Readers skip a
    torn last line; the process that goes on with the part removes it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def claim(self, runs: Iterable[Settings]) -> None:
        """Makes the folder the home of these runs.

        A folder may grow: it takes further runs, as long as those it has are among them.

        Raises:
            ValueError: If the folder holds runs with other settings.
        """
        runs = list(runs)
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / SETTINGS_FILE
        if file.exists():
            self._require_same(self.settings(), runs)
        elif any(self.path.glob("part-*.jsonl")):
            raise ValueError(
                f"{self.path} holds records but no {SETTINGS_FILE}; choose another folder."
            )
        written = {"format": FORMAT, "runs": [asdict(run) for run in runs]}
        # Written beside and renamed, so that a reader never sees half a file.
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)

    def settings(self) -> list[Settings]:
        """Returns the runs that the folder was claimed for, the reference first.

        Raises:
            ValueError: If the path is no results folder, or one of another version.
        """
        file = self.path / SETTINGS_FILE
        if not file.is_file():
            raise ValueError(
                f"A results folder holds {SETTINGS_FILE}, got {self.path} without it; "
                "give the folder that a run wrote."
            )
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            if written["format"] == FORMAT:
                return [Settings.of(run) for run in written["runs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is not what this version writes ({error}); choose another folder."
            ) from error
        raise ValueError(
            f"{file} is in format {written['format']}, this version reads and writes {FORMAT}: its "
            "records lack numbers that are needed here. Run anew into another folder, or use the "
            "version that wrote it."
        )

    def records(self) -> list[Record]:
        """Returns all records, of all processes, each key once.

        A later record of a key replaces an error, nothing else.

        Raises:
            ValueError: If a line other than a torn last one is damaged.
        """
        kept: dict[str, Record] = {}
        for part in sorted(self.path.glob("part-*.jsonl")):
            for record in _read(part):
                earlier = kept.get(record["key"])
                if earlier is None or earlier["error"] is not None:
                    kept[record["key"]] = record
        return list(kept.values())

    def part(self, rank: int) -> Path:
        """Returns the file of a process, a torn last line removed."""
        path = self.path / f"part-{rank}.jsonl"
        if path.exists():
            _mend(path)
        return path

    def _require_same(self, old: list[Settings], new: list[Settings]) -> None:
        for run in old:
            if run not in new:
                raise ValueError(
                    f"{self.path} holds records of other settings ({_difference(run, new)}). "
                    "Choose another folder, or run with the folder's settings to finish it."
                )


def append(path: Path, records: Iterable[Record]) -> None:
    """Appends records in one write."""
    lines = [json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


def _read(path: Path) -> Iterator[Record]:
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record["key"], record["error"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {path} is a record, got {line[:60]!r}; "
                "move the line elsewhere to decode its example anew."
            ) from error
        yield record


def _mend(path: Path) -> None:
    written = path.read_bytes()
    whole = written.rfind(b"\n") + 1
    if whole < len(written):
        with path.open("r+b") as file:
            file.truncate(whole)


def _difference(run: Settings, others: list[Settings]) -> str:
    """Names the fields in which a run differs from the one of the others that is nearest."""

    def differing(other: Settings) -> list[str]:
        return [f.name for f in fields(run) if getattr(run, f.name) != getattr(other, f.name)]

    nearest = min(others, key=lambda other: len(differing(other)))
    return "; ".join(
        f"{name}: {getattr(run, name)!r} there, {getattr(nearest, name)!r} here"
        for name in differing(nearest)
    )

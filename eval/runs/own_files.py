"""Digests of the files that decide a run's answers beside code: weights, tokenizers, filters."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from eval.runs.settings import Run

_NUM_PIECES = 1024
_PIECE_BYTES = 16 * 1024


def files_of(run: Run) -> dict[str, Path]:
    """Returns the files that the model, the sampler and the verifier of a run were read from.

    Names are such as "model/config.json", wherever the folder is: a copy is the same model.
    """
    parts = {
        "model": run.files,
        "sampler": run.sampler.files if run.verifier.asks_sampler else (),
        "verifier": run.verifier.files,
    }
    return {
        f"{part}/{name}": file for part, own in parts.items() for name, file in _named(own).items()
    }


def digests_of(runs: Mapping[str, Run]) -> dict[str, dict[str, str]]:
    """Returns by setting the digests of `files_of`; each file is read once."""
    files = {setting: files_of(run) for setting, run in runs.items()}
    known = {file: digest_of(file) for own in files.values() for file in own.values()}
    return {
        setting: {name: known[file] for name, file in own.items()} for setting, own in files.items()
    }


def digest_of(file: Path) -> str:
    """Returns a digest of a file's size and contents; when it was written does not count.

    Up to 16 MiB are read whole. A larger file, such as 16 GB of weights, is known by 1024 pieces of
    16 KiB, evenly from its first byte to its last: training changes weights nearly everywhere. A
    change that misses every piece, such as that of a single norm in a large file, is not noticed.
    """
    size = file.stat().st_size
    found = blake2b(str(size).encode(), digest_size=12)
    with file.open("rb", buffering=0) as opened:
        for start in _starts(size):
            opened.seek(start)
            found.update(opened.read(_PIECE_BYTES))
    return found.hexdigest()


def _starts(size: int) -> Iterable[int]:
    if size <= _NUM_PIECES * _PIECE_BYTES:
        return range(0, size, _PIECE_BYTES)
    return (i * (size - _PIECE_BYTES) // (_NUM_PIECES - 1) for i in range(_NUM_PIECES))


def _named(files: Iterable[Path]) -> dict[str, Path]:
    """Names files by the last part of their path; a name that comes again is numbered."""
    found: dict[str, Path] = {}
    for file in files:
        num_before = sum(other.name == file.name for other in found.values())
        found[f"{file.name} ({num_before + 1})" if num_before else file.name] = file
    return found

"""Writes files so that a failure, a kill or a full disk leaves the earlier files whole."""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_PARTIAL, _COMPLETE, _STALE = ".partial", ".complete", ".stale"


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a path to write to; the file gets its own name when the block ends without an error.

    The folder is made if need be.

    Raises:
        OSError: In one sentence, if the file cannot be written; the earlier file is as it was.
    """
    # The new contents of a link are written to the file that it names.
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}{_PARTIAL}")
    with in_a_sentence(path):
        if target.exists() and not target.is_file():
            raise OSError("it is no file")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            sync(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file as `new_file` does."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Appends to a file; OSError, in one sentence, if there is no room, and nothing is appended."""
    with in_a_sentence(path), path.open("ab", buffering=0) as file:
        length, rest = file.tell(), memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(length)
            raise


@contextmanager
def new_files(folder: Path, earlier: Collection[str] = ()) -> Iterator[Path]:
    """Gives an empty folder to write to; all its files replace earlier ones, or none does.

    When the block ends without an error, the new files are moved to `folder`. If the process is
    killed while they are moved, `finish_files` moves the rest.

    Args:
        folder: Made if need be.
        earlier: Names of files in it that the new files replace together; those without a
            successor are removed. Other files stay.

    Raises:
        ValueError: If a new file has the name of a file that is not `earlier`.
        OSError: In one sentence, if the files cannot be written; the folder is as it was.
    """
    is_new = not folder.exists()
    with in_a_sentence(folder):
        try:
            if is_new:
                folder.mkdir(parents=True)
            finish_files(folder)
            # A killed process left it. One that still runs fails, and mixes no files with these.
            for left in folder.glob(f"{_PARTIAL}-*"):
                shutil.rmtree(left)
            with TemporaryDirectory(
                prefix=f"{_PARTIAL}-", dir=folder, ignore_cleanup_errors=True
            ) as name:
                yield Path(name)
                _complete(Path(name), earlier)
        finally:
            if is_new and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    finish_files(folder)


def _complete(partial: Path, earlier: Collection[str]) -> None:
    """Renames a folder of new files, which is the moment from which on they replace earlier ones.

    Raises ValueError if a new file has the name of a file that is not `earlier`.
    """
    folder, written = partial.parent, sorted(partial.iterdir())
    names = {file.name for file in written}
    if foreign := [name for name in sorted(names - {*earlier}) if (folder / name).exists()]:
        raise ValueError(
            f"{str(folder)!r} must have no {foreign[0]} of somebody else, got one. Move it "
            "elsewhere, or choose another folder."
        )
    (partial / _STALE).write_text(json.dumps(sorted({*earlier} - names)))
    for file in (*written, partial / _STALE, partial):
        sync(file)
    partial.rename(folder / _COMPLETE)


def finish_files(folder: Path) -> None:
    """Ends the work of `new_files` if a process was killed while its files were moved."""
    complete = folder / _COMPLETE
    stale = complete / _STALE
    if not stale.is_file():
        return
    for name in json.loads(stale.read_text()):
        (folder / name).unlink(missing_ok=True)
    for file in complete.iterdir():
        # Another process may end the same work.
        with suppress(FileNotFoundError):
            if file != stale:
                file.replace(folder / file.name)
    sync(folder)
    shutil.rmtree(complete, ignore_errors=True)


@contextmanager
def in_a_sentence(place: Path) -> Iterator[None]:
    """Turns an error of the file system into one that says what became of the earlier files."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{str(place)!r} must be a place that can be written, with room for the new contents, "
            f"got: {error.strerror or error}. Its earlier contents are unchanged."
        ) from error


def sync(path: Path) -> None:
    """Waits until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

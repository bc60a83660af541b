"""Writes files so that a failure, a kill or a full disk leaves the earlier contents whole.

Files of JSON lines are appended to, and are read without a last line that a kill has torn.
"""

import json
import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from samplers.checks import shown

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
        length = file.tell()
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(length)
            raise


def whole_lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the lines of a file of JSON lines, each after its place for messages.

    Blank lines are left out, and so is a torn last line, which a killed process has left. A last
    line without a line end is torn only if it is no JSON.
    """
    *lines, last = file.read_bytes().split(b"\n")
    for number, line in enumerate([*lines, b"" if _is_torn(last) else last], start=1):
        if line.strip():
            yield f"Line {number} of {file}", line


def mend_last_line(path: Path, beginning: bytes) -> None:
    """Removes a torn last line, and ends a whole last line that has no line end.

    Args:
        path: The file; one that does not exist is not made.
        beginning: The first bytes of every line that a process writes here.

    Raises:
        ValueError: If a torn line begins otherwise, so that somebody else wrote it.
    """
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    last = content[end:]
    if not last:
        return
    is_torn = _is_torn(last)
    if is_torn and last[: len(beginning)] != beginning[: len(last)]:
        raise ValueError(
            f"{path} must be new, or hold lines that begin with {beginning.decode()}, got a last "
            f"line {shown(last[:80].decode(errors='replace'))}. Choose another file."
        )
    with path.open("r+b") as file:
        if is_torn:
            file.truncate(end)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")


def _is_torn(line: bytes) -> bool:
    try:
        msgspec.json.decode(line.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return True
    return False


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
    folder = partial.parent
    written = sorted(partial.iterdir())
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

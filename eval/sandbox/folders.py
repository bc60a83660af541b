"""Temporary folders that are gone afterwards, whatever a program left in them."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Gives an empty folder and removes it with all its contents afterwards.

    `tempfile.TemporaryDirectory` removes recursively: of 3,000 folders within one another it gives
    up, and their path is longer than the system allows.
    """
    folder = tempfile.mkdtemp(prefix="sandbox-")
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: str) -> None:
    """Removes a folder with its contents, however deep and whatever their modes.

    It goes down and up again one folder at a time, with one of them open. Nothing else may write
    there meanwhile.
    """
    here = _open(folder)
    try:
        # Of each folder on the way down, the folders inside that are still to be removed.
        left = [_emptied(here)]
        while len(left) > 1 or left[-1]:
            inside = bool(left[-1])
            there = _open(left[-1][-1] if inside else "..", here)
            os.close(here)
            here = there
            if inside:
                left.append(_emptied(here))
            else:
                left.pop()
                os.rmdir(left[-1].pop(), dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(folder)


def _open(name: str, parent: int | None = None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


def _emptied(folder: int) -> list[str]:
    """Removes the files of a folder and returns its folders, made ours to read and change."""
    folders = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            folders.append(name)
            with suppress(PermissionError):
                os.chmod(name, 0o700, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    return folders

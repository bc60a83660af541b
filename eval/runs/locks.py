"""One writer at a time: a lock file that ends with its process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def only_writer(file: Path, refusal: str) -> Iterator[None]:
    """Holds a lock file.

    Args:
        file: The lock file; its folder must be there.
        refusal: Said if another process holds it.

    Raises:
        ValueError: If another process holds it.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(refusal) from None
    try:
        yield
    finally:
        lock.release()

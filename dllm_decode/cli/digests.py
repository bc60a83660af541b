"""Digests of files and of the code of own plug-ins."""

import json
import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from dllm_decode.cli.plugins import parse_model
from samplers.expression import is_ours, parts_of

_NUM_PIECES = 1024
_PIECE_BYTES = 16 * 1024


def sources_of(plugins: Iterable[object], model: str) -> dict[str, str]:
    """Returns, by module, digests of the files that define the user's own classes.

    Own classes are looked for among plug-ins, the task, and the model family that an address names.
    The imports of their files do not count, nor does a class that no file defines.
    """
    modules = {module for plugin in plugins for module in own_modules(plugin)}
    family, is_own, _ = (parse_model(model).family or "").partition(":")
    modules |= {family} if is_own else set()
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {
        module: blake2b(Path(file).read_bytes(), digest_size=12).hexdigest()
        for module, file in sorted(files.items())
        if file is not None and Path(file).is_file()
    }


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


def own_modules(plugin: object) -> Iterator[str]:
    """Yields the modules of the user's own classes, of a plug-in and of all that it holds."""
    for part in parts_of(plugin):
        for kind in type(part).__mro__:
            if not is_ours(kind) and any(is_ours(base) for base in kind.__mro__):
                yield kind.__module__


def digest(value: object) -> str:
    """Returns a short hash of a value's canonical JSON."""
    return digest_of_text(canonical(value))


def canonical(value: object) -> str:
    """Returns a value as JSON, the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of_text(text: str) -> str:
    """Returns a short hash of a text."""
    return blake2b(text.encode(), digest_size=12).hexdigest()

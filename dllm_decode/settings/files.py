"""Reads and writes JSON files, checks paths that options name, and computes digests."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from dllm_decode.core.files import in_a_sentence, write_text

Value = TypeVar("Value")

_NUM_PIECES = 1024
_PIECE_BYTES = 16 * 1024

ANEW = "remove the file, and the same command makes it anew"
REPAIR = "repair or remove it"

# The first half of a surrogate pair without the other half.
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")


def read_object(file: Path, kind: Any = dict[str, Any], *, remedy: str = ANEW) -> Any:
    """Reads a file of JSON, and checks its contents against a type as `parse_json` does."""
    return parse_json(file.read_bytes(), kind, str(file), remedy)


def parse_json(content: bytes, kind: type[Value] | GenericAlias, where: str, remedy: str) -> Value:
    """Reads JSON of a declared type: NaN, unknown fields of a Struct and cut-off texts are refused.

    Raises ValueError if the contents are anything else; the message names the place `where`, such
    as a file and its line, the field, and the remedy.
    """
    with _json_errors(where, remedy, kind):
        try:
            return msgspec.json.decode(content.removeprefix(BOM_UTF8), type=kind)
        except msgspec.DecodeError:
            if half := _HALF_PAIR.search(content):
                raise ValueError(f"{half[0].decode()}, half of a surrogate pair") from None
            raise


def checked_value(
    value: object, kind: type[Value] | GenericAlias, where: str, remedy: str
) -> Value:
    """Checks a value that was read already, as `parse_json` does."""
    with _json_errors(where, remedy, kind):
        return msgspec.convert(value, kind)


def has_type(value: object, kind: Any) -> bool:
    """Returns whether a value from JSON or TOML is of a type; True is not a number."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


@contextmanager
def _json_errors(where: str, remedy: str, kind: Any) -> Iterator[None]:
    """Turns msgspec's errors into a ValueError that names the place, the field and the remedy."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise ValueError(f"{where} must {_rule_of(error, kind)}; {remedy}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON, got: {error}; {remedy}.") from None


def _rule_of(error: msgspec.ValidationError, kind: Any) -> str:
    problem, _, path = str(error).partition(" - at `$")
    problem, path = problem.replace("`", ""), path.strip("`.")
    missing, unknown = "Object missing required field ", "Object contains unknown field "
    if problem.startswith(missing):
        inside = f" in {path!r}" if path else ""
        return f"have a field {problem.removeprefix(missing)!r}{inside}, got none"
    if problem.startswith(unknown):
        is_listed = not path and isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        names = ", ".join(kind.__struct_fields__) if is_listed else "of this version"
        return f"have the fields {names}, got {problem.removeprefix(unknown)!r} besides"
    problem = problem[:1].lower() + problem[1:]
    # The values of an object without declared fields have no name.
    place = "be" if path.startswith("[") or not path else f"have {path!r}"
    return f"{place} in its official form: {problem}"


def read_input(read: Callable[[], str]) -> str:
    """Reads text from standard input; raises ValueError if it is not in UTF-8."""
    try:
        text = read()
        # In some locales, bytes that are not UTF-8 are read as lone surrogates.
        text.encode()
    except UnicodeError as error:
        raise ValueError(f"Standard input must be text in UTF-8, got {error}.") from None
    return text


def write_json(file: Path, content: object) -> None:
    """Writes a file of JSON, as `new_file` does."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def output_file(option: str, path: str) -> Path:
    """Returns the path of a file to write, checked before the contents are computed.

    Raises ValueError if the path is a folder, a device or a stream, or its folder does not exist.
    """
    file = Path(path)
    is_other = file.exists() and not file.is_file()
    # Redirected to a file, the standard output is a file too.
    is_other |= path.startswith(("/dev/std", "/dev/fd/", "/proc/"))
    if is_other or not file.parent.is_dir():
        raise ValueError(f"{option} must be a file in a folder that is there, got {path!r}.")
    return file


def input_file(option: str, path: str, what: str) -> Path:
    """Returns the path of a file to read; raises ValueError if there is no such file."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{option} must be a file of {what}, got {path!r}.")
    return file


def require_folder_or_new(path: Path) -> None:
    """Raises ValueError if a folder cannot be made because a file is in its place."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise ValueError(f"{path} must be a folder, or be new, got the file {nearest}.")


@contextmanager
def only_writer(file: Path, refusal: str, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Holds the lock of a lock file, whose folder must exist; the lock ends with the process.

    Raises ValueError with the text `refusal` if another process still holds the lock after
    `timeout_s`, and OSError if the lock file cannot be written.
    """
    with in_a_sentence(file):
        file.touch()
    try:
        with FileLock(file).acquire(timeout=timeout_s):
            yield
    except Timeout:
        raise ValueError(refusal) from None


def digest_of_file(file: Path) -> str:
    """Returns a digest of a file's size and contents; the time of writing does not count.

    A file of up to 16 MiB is read completely. In a larger file, such as 16 GB of weights, only 1024
    pieces of 16 KiB are read, evenly spaced, because training changes weights nearly everywhere. A
    change outside of all pieces, such as in one norm of a large file, is not noticed.
    """
    size = file.stat().st_size
    hasher = blake2b(str(size).encode(), digest_size=12)
    starts: Iterable[int] = range(0, size, _PIECE_BYTES)
    if size > _NUM_PIECES * _PIECE_BYTES:
        starts = (i * (size - _PIECE_BYTES) // (_NUM_PIECES - 1) for i in range(_NUM_PIECES))
    with file.open("rb", buffering=0) as opened:
        for start in starts:
            opened.seek(start)
            hasher.update(opened.read(_PIECE_BYTES))
    return hasher.hexdigest()


def digest(value: object) -> str:
    """Returns a short hash of a value's canonical JSON."""
    return digest_of_text(canonical_json(value))


def canonical_json(value: object) -> str:
    """Returns a value as JSON; equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of_text(text: str) -> str:
    """Returns a short hash of a text."""
    return blake2b(text.encode(), digest_size=12).hexdigest()

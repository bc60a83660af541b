"""Reads problems from official files and from the hub; errors name file and line."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Found(NamedTuple):
    """A JSON object, and where it is, for messages."""

    fields: Mapping[str, Any]
    where: str


def read_objects(path: str, names: Sequence[str], source: str) -> list[Found]:
    """Reads a file of JSON lines, or of one JSON list; `.gz` is decompressed.

    Args:
        path: The file, or a folder that holds one of `names`.
        names: File names of the official data.
        source: Where they can be had.

    Raises:
        ValueError: If the file is missing, empty or damaged.
    """
    file = _file_of(path, names, source)
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} is text in UTF-8, with .gz compressed, got {error}; download it again."
        ) from error
    if text.lstrip().startswith("["):
        return _listed(text, file)
    found = objects_of(text, file)
    if not found:
        raise ValueError(
            f"{file} must hold one JSON object a line, got no line; download it again."
        )
    return found


def objects_of(text: str, file: Path | str) -> list[Found]:
    """Reads JSON objects, one a line; empty lines are skipped.

    Args:
        text: The lines.
        file: Where they come from, for messages.

    Raises:
        ValueError: If a line holds something else.
    """
    found = []
    # U+2028 is allowed in JSON and must not end a line.
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"Line {number} of {file}"
        if line.strip():
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where} must be a JSON object, got {line[:60]!r} ({error}); "
                    "repair or remove the line."
                ) from None
            found.append(_object(fields, where))
    return found


def hub_objects(hub_id: str, config: str | None, split: str, names: Sequence[str]) -> list[Found]:
    """Loads a split from the hub.

    Raises:
        ValueError: If `datasets` is not installed or the hub cannot be reached.
    """
    remedy = f"give path=, a folder with {' or '.join(names)}"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"{hub_id} without a path needs the package `datasets`, got none; install it or "
            f"{remedy}."
        ) from error
    try:
        table = load_dataset(hub_id, config, split=split)
    except OSError as error:
        raise ValueError(
            f"Without a path the hub's {hub_id} is needed, got {type(error).__name__}; {remedy}."
        ) from error
    return [Found(fields, f"Row {i} of {hub_id}") for i, fields in enumerate(table, start=1)]


def text_of(found: Found, *names: str) -> str:
    """Returns the text in the first of the fields that is there.

    Raises:
        ValueError: If none is there, or it holds no text.
    """
    for name in names:
        if name in found.fields and isinstance(found.fields[name], str):
            return str(found.fields[name]).replace("\r\n", "\n")
    wanted = " or ".join(repr(name) for name in names)
    raise ValueError(
        f"{found.where} has a text {wanted}, got {sorted(found.fields)}; repair or remove it."
    )


def texts_of(found: Found, name: str) -> list[str]:
    """Returns the texts listed in a field; none if the field is not there.

    Raises:
        ValueError: If the field holds something else.
    """
    texts = found.fields.get(name)
    if texts is None:
        return []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{found.where} lists texts in {name!r}, got {texts!r}; repair or remove it."
        )
    return [text.replace("\r\n", "\n") for text in texts]


def _file_of(path: str, names: Sequence[str], source: str) -> Path:
    given = Path(path)
    if given.is_dir():
        here = [given / name for name in names if (given / name).is_file()]
        given = here[0] if here else given / names[0]
    if not given.is_file():
        raise ValueError(
            f"Problems are read from {given}, got no such file; download {' or '.join(names)} "
            f"from {source} and give its path."
        )
    return given


def _listed(text: str, file: Path) -> list[Found]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is a JSON list, got {error}; download it again.") from error
    return [_object(fields, f"Entry {i} of {file}") for i, fields in enumerate(rows, start=1)]


def _object(fields: object, where: str) -> Found:
    if not isinstance(fields, dict):
        raise ValueError(
            f"{where} must be a JSON object, got {str(fields)[:60]}; repair or remove it."
        )
    return Found(fields, where)

"""Tasks that are read from files; errors name file and line."""

import gzip
import random
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dllm_decode.settings.files import REPAIR, parse_json
from eval.tasks.base import Example, Task


class FileTask(Task):
    """A task whose examples are read, not generated; each split has a fixed order."""

    @abstractmethod
    def read(self, split: str) -> Sequence[Example]:
        """Returns every example of a split."""

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Returns the first examples of a split with seed 0; other seeds draw from the split.

        Raises ValueError if the split cannot be read, or has fewer than `num_examples`.
        """
        self.require(split, num_examples)
        examples = self.read(split)
        self.require_enough(split, len(examples), num_examples)
        wanted = len(examples) if num_examples is None else num_examples
        if seed == 0:
            return examples[:wanted]
        return random.Random(self.seed_of(split, seed)).sample(examples, wanted)

    def seed_of(self, split: str, seed: int) -> str:
        """Returns the seed of the draw from a split."""
        return f"{self.name};{split};{seed}"


class Found(NamedTuple):
    """A JSON object, and its place in words, for messages."""

    fields: Mapping[str, Any]
    where: str


def read_objects(file: Path) -> list[Found]:
    """Reads a file of JSON lines, or of one JSON list; `.gz` is decompressed."""
    remedy = "repair it or download it again"
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
        is_list = text.lstrip().startswith("[")
        entries = msgspec.json.decode(text, type=list[dict[str, Any]]) if is_list else []
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} must be JSON lines or a JSON list in UTF-8, with .gz compressed, got: "
            f"{error}; {remedy}."
        ) from error
    objects = [Found(entry, f"Entry {i} of {file}") for i, entry in enumerate(entries, start=1)]
    if not is_list:
        # U+2028 is allowed in JSON and must not end a line.
        lines = enumerate(text.split("\n"), start=1)
        objects = [_found(line, f"Line {n} of {file}") for n, line in lines if line.strip()]
    if not objects:
        raise ValueError(
            f"{file} must hold JSON objects, one a line or a JSON list of them, got none; {remedy}."
        )
    return objects


def _found(line: str, where: str) -> Found:
    return Found(parse_json(line.encode(), dict[str, Any], where, REPAIR), where)

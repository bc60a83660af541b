"""Tasks that are read from files or from the hub; errors name file and line."""

import gzip
import random
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec

from dllm_decode.settings.files import REPAIR, decoded
from eval.tasks.base import Example, Task
from samplers.checks import require_choice, require_count

HUB_TIMEOUT_S = 5.0
OF_PROTOCOL = -1


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


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published setting, without model, sampler and temperature; lengths are in tokens.

    Attributes:
        num_fewshot: Number of demonstrations.
        gen_length: Length of the answer.
        block_length: Length of a block; None is the model's own. A setting without blocks has
            one block, as long as the answer.
        write: "plain": text that stays out of the chat template. "one_turn": the same text as one
            user turn. "turns": instructions, each demonstration a user and an assistant turn.
        choose: The "first" rows demonstrate every question, or rows drawn "anew" for each.
        wording: Name of the words around questions, if the task knows several.
    """

    num_fewshot: int
    gen_length: int
    block_length: int | None = None
    write: Literal["plain", "one_turn", "turns"] = "plain"
    choose: Literal["first", "anew"] = "first"
    wording: str = ""


PROTOCOLS = msgspec.toml.decode(
    Path(__file__).with_name("protocols.toml").read_bytes(), type=dict[str, dict[str, Protocol]]
)
"""By task, then by name, the published settings."""


@dataclass(frozen=True)
class PublishedTask(FileTask):
    """A public data set under settings by which papers measured models.

    Attributes:
        path: A file in the official format, or a folder with one; None asks the hub through
            `datasets`.
        protocol: Name of a published setting.
        gen_length: Default answer length in tokens; -1 is the protocol's.
    """

    path: str | None = None
    protocol: str = "lm_eval"
    gen_length: int = OF_PROTOCOL

    def __post_init__(self) -> None:
        require_choice("protocol", self.protocol, tuple(PROTOCOLS[self.name]))
        if self.gen_length == OF_PROTOCOL:
            object.__setattr__(self, "gen_length", self.published.gen_length)
        require_count("gen_length", self.gen_length, 1)

    @property
    def published(self) -> Protocol:
        """The setting that `protocol` names."""
        return PROTOCOLS[self.name][self.protocol]

    @property
    def prompts(self) -> str:
        return "plain" if self.published.write == "plain" else "chat"

    @property
    def block_length(self) -> int | None:
        return self.published.block_length


class Found(NamedTuple):
    """A JSON object, and its place in words, for messages."""

    fields: Mapping[str, Any]
    where: str


class DataSet(NamedTuple):
    """A public data set: its copy on the hub, names and address of the official files."""

    hub_id: str
    config: str | None
    names: Sequence[str]
    source: str

    def rows(self, path: str | None, split: str) -> list[Found]:
        """Returns the rows of a file or folder; if the path is None, the rows of the hub's split.

        Raises ValueError if the file is missing or damaged, or the hub or `datasets` is not there.
        """
        return self._hub_rows(split) if path is None else read_objects(self._file_of(path))

    def _file_of(self, path: str) -> Path:
        file = Path(path)
        if file.is_dir():
            present = [file / name for name in self.names if (file / name).is_file()]
            file = present[0] if present else file / self.names[0]
        if not file.is_file():
            raise ValueError(
                f"Problems are read from {file}, got no such file; download "
                f"{' or '.join(self.names)} from {self.source} and give its path."
            )
        return file

    def _hub_rows(self, split: str) -> list[Found]:
        remedy = f"give path=, a folder with {' or '.join(self.names)} from {self.source}"
        try:
            from datasets import config, load_dataset
        except ImportError as error:
            raise ValueError(
                f"Without a path, {self.hub_id} is read from the hub by the package `datasets`, "
                f"got none; install the extra `eval`, or {remedy}."
            ) from error
        try:
            # Without a network, `datasets` itself would retry for a minute and a half.
            if not config.HF_HUB_OFFLINE:
                with suppress(HTTPError):
                    urlopen(config.HF_ENDPOINT, timeout=HUB_TIMEOUT_S).close()
            table = load_dataset(self.hub_id, self.config, split=split)
        except OSError as error:
            raise ValueError(
                f"{self.hub_id} must be in reach at {config.HF_ENDPOINT} or in the cache, got: "
                f"{error}. Set HF_HUB_OFFLINE=1 if it was downloaded before, or {remedy}."
            ) from error
        return [Found(row, f"Row {i} of {self.hub_id}") for i, row in enumerate(table, start=1)]


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
    return Found(decoded(line.encode(), dict[str, Any], where, REPAIR), where)

"""What the tasks scored by running programs share: permission, scores, extraction of code."""

import random
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from eval.sandbox.code_runner import CodeRunner, NoCode
from eval.tasks.base import Example, Task
from eval.tasks.code_protocols import CodeProtocol

OF_PROTOCOL = -1
PYTHON = ("", "python", "python3", "py")

_FENCED = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CodeTask(Task):
    """A task whose answers are programs, right if they pass the problem's tests.

    Attributes:
        path: A file in the official format, or a folder with one; None asks the hub through
            `datasets`.
        protocol: A setting of `eval.tasks.code_protocols`: `lm_eval`, plain text that the answer
            continues; `instruct`, a chat turn answered by a fenced block; or a published one.
        gen_length: Default answer length in tokens; -1 is the protocol's.
        sandbox: Runs the programs. By default none is run, and scoring is refused.
    """

    path: str | None = None
    protocol: str = "lm_eval"
    gen_length: int = OF_PROTOCOL
    sandbox: CodeRunner = field(default_factory=NoCode)

    version = 1
    primary = "passed"
    protocols: ClassVar[Mapping[str, CodeProtocol]]

    def __post_init__(self) -> None:
        if self.protocol not in self.protocols:
            raise ValueError(
                f"protocol must be one of {', '.join(self.protocols)}, got {self.protocol!r}."
            )
        if self.gen_length == OF_PROTOCOL:
            object.__setattr__(self, "gen_length", self.published.gen_length)
        if self.gen_length < 1:
            raise ValueError(f"gen_length must be at least 1, got {self.gen_length}.")

    @property
    def prompts(self) -> str:
        return "chat" if self.published.is_chat else "plain"

    @property
    def block_length(self) -> int | None:
        return self.published.block_length

    @property
    def published(self) -> CodeProtocol:
        """The setting that `protocol` names."""
        return self.protocols[self.protocol]

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Returns problems with their prompts.

        With seed 0 they are the first of the split, in the file's order; other seeds draw from it.

        Raises:
            ValueError: If the problems cannot be read, or there are fewer than `num_examples`.
        """
        self.require(split, num_examples)
        found = self.problems(split)
        ids = [example.id for example in found]
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ValueError(f"Problems of {self.name} are distinct, got {twice!r} twice.")
        wanted = len(found) if num_examples is None else num_examples
        self.require_enough(split, len(found), wanted)
        if seed != 0:
            return random.Random(f"{self.name};{split};{seed}").sample(found, wanted)
        return found[:wanted]

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by running it.

        `passed` (primary): it passes every test within the sandbox's limits. `loads`: it runs to
        its end, before the tests, without an error. `compiles`: it is Python.

        Raises:
            ValueError: If programs may not be run.
            RuntimeError: If the problem's own tests are no Python.
        """
        outcome = self.sandbox.run(self.program(example, text), example.meta["tests"])
        return {
            "passed": float(outcome.passed),
            "loads": float(outcome.loaded),
            "compiles": float(outcome.compiled),
        }

    def allowing(self, code: CodeRunner) -> Task:
        return replace(self, sandbox=code)

    def require_scorable(self) -> None:
        self.sandbox.require_ready(self.name)

    @abstractmethod
    def problems(self, split: str) -> list[Example]:
        """Returns every problem of a split, its tests under `tests` in `meta`."""

    @abstractmethod
    def program(self, example: Example, text: str) -> str:
        """Returns the candidate program of an answer, without the tests."""


class Block(NamedTuple):
    """A fenced block: its language, lower case, and what it holds."""

    language: str
    code: str


def python_blocks(text: str) -> list[str]:
    """Returns the fenced blocks that are marked as Python or as nothing, in their order.

    A block that is not closed goes to the end of the text.
    """
    blocks = [Block(tag.strip().lower(), code) for tag, code in _FENCED.findall(text)]
    return [block.code for block in blocks if block.language in PYTHON]


def fenced(code: str) -> str:
    """Writes code as a fenced block."""
    return f"```python\n{code.strip(chr(10))}\n```"

"""The parts that tasks scored by running programs share: settings, scores, finding the code.

Source: Settings of papers: the evaluation scripts of LLaDA, https://github.com/ML-GSAI/LLaDA,
Fast-dLLM, https://github.com/NVlabs/Fast-dLLM, dParallel, https://github.com/czg1225/dParallel,
D2F, https://github.com/zhijie-group/Discrete-Diffusion-Forcing, and Dream,
https://github.com/DreamLM/Dream.

Differs: Where the scripts ask an instruction-tuned model for a fenced block, the words are our own.
LLaDA's setting holds EOS back, and Dream's draws at temperature 0.1 with top_p 0.9: options of the
decode, not of a prompt.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eval.sandbox.code_runner import CodeRunner, NoCode
from eval.tasks.base import Example, Task
from eval.tasks.problem_files import PublishedTask

PYTHON = ("", "python", "python3", "py")

_FENCED = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CodeTask(PublishedTask):
    """A task whose answers are programs, right if they pass the problem's tests.

    Protocols are `lm_eval`, plain text that the answer continues; `instruct`, a chat turn answered
    by a fenced block; and published settings.

    Attributes:
        sandbox: Runs the programs. By default none is run, and scoring is refused.
    """

    sandbox: CodeRunner = field(default_factory=NoCode)

    version = 1
    primary = "passed"

    @property
    def is_instruction(self) -> bool:
        """True if the prompt asks for a fenced block; otherwise the answer continues the prompt."""
        return self.published.write == "turns"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by running it, which the user must have allowed.

        `passed` (primary): it passes every test within the sandbox's limits. `loads`: it runs to
        its end, before the tests, without an error. `compiles`: it is Python.
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
    def program(self, example: Example, text: str) -> str:
        """Returns the candidate program of an answer, without the tests."""

    def blocks(self, text: str) -> list[str] | None:
        """Returns the fenced programs of an answer; all of it if none is fenced.

        None: the answer continues the prompt. A chat model answers a plain prompt with a fenced
        block all the same.
        """
        found = python_blocks(text)
        is_fenced = self.is_instruction or (self.prompts == "chat" and found)
        return (found or [text]) if is_fenced else None


def python_blocks(text: str) -> list[str]:
    """Returns the fenced blocks that are marked as Python or as nothing, in their order.

    A block that is not closed goes to the end of the text.
    """
    return [code for tag, code in _FENCED.findall(text) if tag.strip().lower() in PYTHON]


def fenced(code: str) -> str:
    """Writes code as a fenced block."""
    return f"```python\n{code.strip(chr(10))}\n```"


def unix_lines(value: Any) -> Any:
    """Ends the lines of all texts of a JSON value as Unix does; MBPP's file mixes both kinds."""
    if isinstance(value, dict):
        return {name: unix_lines(part) for name, part in value.items()}
    if isinstance(value, list):
        return [unix_lines(part) for part in value]
    return value.replace("\r\n", "\n") if isinstance(value, str) else value

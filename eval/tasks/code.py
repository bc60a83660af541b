"""Shared parts of tasks that are scored by running programs: settings, scores, finding the code.

Source: Settings of papers: the evaluation scripts of LLaDA, https://github.com/ML-GSAI/LLaDA,
Fast-dLLM, https://github.com/NVlabs/Fast-dLLM, dParallel, https://github.com/czg1225/dParallel,
D2F, https://github.com/zhijie-group/Discrete-Diffusion-Forcing, and Dream,
https://github.com/DreamLM/Dream.

Differs: Where the scripts ask an instruction-tuned model for a fenced block, the words are our own.
LLaDA's setting holds EOS back, and Dream's draws at temperature 0.1 with top_p 0.9: options of the
decode, not of a prompt.
"""

import ast
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import dedent
from typing import Any

from markdown_it import MarkdownIt

from eval.sandbox.code_runner import CodeRunner, NoCode
from eval.tasks.base import Example, Task
from eval.tasks.problem_files import PublishedTask

PYTHON = ("", "python", "python3", "py")

# Models indent fences in any way: an item of a list, or a tag before them, must not hide them.
_MARKDOWN = MarkdownIt("commonmark").disable(["code", "html_block", "list"])


@dataclass(frozen=True)
class CodeTask(PublishedTask):
    """A task whose answers are programs, right if they pass the problem's tests.

    Protocols are `lm_eval`, plain text that the answer continues; `instruct`, a chat turn answered
    by a fenced block; and published settings.

    Attributes:
        sandbox: Runs the programs. By default no program is run, and scoring is refused.
    """

    sandbox: CodeRunner = field(default_factory=NoCode)

    version = 2
    primary = "passed"

    @property
    def is_instruction(self) -> bool:
        """True if the prompt asks for a fenced block; otherwise the answer continues the prompt."""
        return self.published.write == "turns"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer by running it, which the user must have allowed.

        `passed` (primary): the program passes every test within the sandbox's limits. `loads`: it
        runs to its end, before the tests, without an error. `compiles`: it is Python.
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
        """Returns the fenced programs of an answer; the whole answer if nothing is fenced.

        None means that the answer continues the prompt. A plain prompt in the chat template may
        still be answered by a fenced block.
        """
        blocks = python_blocks(text)
        is_fenced = self.is_instruction or (self.prompts == "chat" and blocks)
        return (blocks or [text]) if is_fenced else None


def python_blocks(text: str) -> list[str]:
    """Returns the fenced blocks that are marked as Python or not marked, in their order.

    A block that is not closed goes to the end of the text. If the only fence has no Python after
    it, the block is the text before that fence.
    """
    lines = [part for line in text.split("\n") for part in _own_lines(line)]
    fences = [token for token in _MARKDOWN.parse("\n".join(lines)) if token.type == "fence"]
    if len(fences) == 1 and fences[0].map and not _is_python(fences[0].content):
        before = "\n".join(lines[: fences[0].map[0]])
        if before.strip():
            return [f"{before}\n"]
    pairs = [(fence.content, fence.map or [0]) for fence in fences if _tag_of(fence.info) in PYTHON]
    return [_unshifted(content, lines[place[0] :]) for content, place in pairs]


def _unshifted(content: str, lines: Sequence[str]) -> str:
    """Returns the content of the fence that begins these lines.

    Markdown removes the fence's indentation from each line, even if some lines have less.
    """
    fence, *rest = lines
    indent = fence[: len(fence) - len(fence.lstrip())]
    body = rest[: content.removesuffix("\n").count("\n") + 1]
    is_whole = all(line.startswith(indent) for line in body if line.strip())
    return content if is_whole else "\n".join([*body, ""])


def _own_lines(line: str) -> list[str]:
    """Puts a fence that follows words, which Markdown overlooks, on a line of its own."""
    words, fence, tag = line.partition("```")
    is_late = fence and words.strip(" \t`>") and tag.strip("` ").lower() in PYTHON
    return [words, fence + tag] if is_late else [line]


def _tag_of(info: str) -> str:
    """Returns the language of a fence, which options may follow."""
    return next(iter(info.lower().split()), "")


def _is_python(code: str) -> bool:
    try:
        return bool(ast.parse(dedent(code)).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def fenced(code: str) -> str:
    """Writes code as a fenced block."""
    return f"```python\n{code.strip(chr(10))}\n```"


def unix_lines(value: Any) -> Any:
    """Returns a JSON value with Unix line ends in all texts; MBPP's file mixes both kinds."""
    if isinstance(value, dict):
        return {name: unix_lines(part) for name, part in value.items()}
    if isinstance(value, list):
        return [unix_lines(part) for part in value]
    return value.replace("\r\n", "\n") if isinstance(value, str) else value

"""MBPP, small programs from a description and tests, from the official files or the hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from dllm_decode.core.stopping import cut_at
from dllm_decode.settings.files import REPAIR, converted
from eval.tasks.base import Example, Turn, content_id, conversation
from eval.tasks.code import CodeTask, fenced, unix_lines
from eval.tasks.problem_files import OF_PROTOCOL, DataSet, Found

DATA = DataSet(
    "google-research-datasets/mbpp", "full", ("mbpp.jsonl", "sanitized-mbpp.json"),
    "https://github.com/google-research/google-research/tree/master/mbpp",
)  # fmt: skip

NUMBERS: Mapping[str, range] = {
    "test": range(11, 511),
    "val": range(511, 601),
    "train": range(601, 975),
    "prompt": range(1, 11),
}
"""The paper's splits, by `task_id`."""

# The paper shows 2, 3 and 4; further demonstrations are the rest of the split.
SHOWN = (2, 3, 4, 1, 5, 6, 7, 8, 9, 10)
BEGIN, DONE = "[BEGIN]", "[DONE]"


class MbppProblem(msgspec.Struct):
    """A problem of the official files; the sanitized one says `prompt` in place of `text`."""

    task_id: Annotated[int, Meta(ge=1, le=974)]
    text: str
    code: str
    test_list: Annotated[list[str], Meta(min_length=1)]
    test_setup_code: str = ""
    test_imports: list[str] = []

    @property
    def tests(self) -> str:
        """Imports, set-up and assertions, as they are run."""
        return "\n".join([*self.test_imports, self.test_setup_code, *self.test_list, ""])


@dataclass(frozen=True)
class Mbpp(CodeTask):
    """MBPP, full or sanitized: write a function that passes the assertions in the prompt.

    `lm_eval`: plain text; each demonstration is a description with its assertions and then the
    program between `[BEGIN]` and `[DONE]`. `instruct`: user turns that ask for a fenced block, and
    assistant turns that give one.

    Source: Austin et al. 2021, "Program Synthesis with Large Language Models",
    https://arxiv.org/abs/2108.07732; splits and demonstrations (`task_id` 2, 3 and 4) are the
    paper's. Layout and stop string of `lm_eval`: the task `mbpp` of lm-evaluation-harness 0.4.13,
    https://github.com/EleutherAI/lm-evaluation-harness.
    Differs: the words around description and assertions are our own. Lines end as on Unix;
    the official file mixes both kinds. A problem's set-up is run, which the harness leaves out. A
    program has 5 s of processor time. Published scores of diffusion models have an answer length
    between 256 (LLaDA, Fast-dLLM, d3LLM) and 1024 (Dream), and none or three demonstrations.

    Attributes:
        num_fewshot: Demonstrations in a prompt; -1 is the protocol's number.
    """

    num_fewshot: int = OF_PROTOCOL

    name = "mbpp"
    splits = tuple(NUMBERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_fewshot == OF_PROTOCOL:
            object.__setattr__(self, "num_fewshot", self.published.num_fewshot)
        if not 0 <= self.num_fewshot < len(SHOWN):
            raise ValueError(f"num_fewshot is 0 to {len(SHOWN) - 1}, got {self.num_fewshot}.")

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.is_instruction else (DONE,)

    def read(self, split: str) -> list[Example]:
        problems = self._problems(split)
        prompt_problems = self._problems("prompt") if self.num_fewshot else []
        by_number = {problem.task_id: problem for problem in prompt_problems}
        pool = [by_number[number] for number in SHOWN if number in by_number]
        return [self._example(problem, self._demonstrations(problem, pool)) for problem in problems]

    def program(self, example: Example, text: str) -> str:
        """Returns the text before `[DONE]`, or the first block of Python."""
        blocks = self.blocks(text)
        return cut_at(text, self.stop) if blocks is None else blocks[0]

    def _problems(self, split: str) -> list[MbppProblem]:
        rows = DATA.rows(self.path, "validation" if split == "val" else split)
        problems = [problem_of(row) for row in rows]
        return [problem for problem in problems if problem.task_id in NUMBERS[split]]

    def _demonstrations(self, problem: MbppProblem, pool: list[MbppProblem]) -> list[MbppProblem]:
        others = [other for other in pool if other.task_id != problem.task_id]
        if len(others) < self.num_fewshot:
            raise ValueError(
                f"num_fewshot must be at most the number of other problems with task_id 1 to 10, "
                f"{len(others)}, got {self.num_fewshot}; give the whole file, or num_fewshot=0."
            )
        return others[: self.num_fewshot]

    def _example(self, problem: MbppProblem, demonstrations: list[MbppProblem]) -> Example:
        plain = not self.is_instruction
        return Example(
            id=f"MBPP/{problem.task_id}-{content_id(problem.text + problem.tests)}",
            prompt=(write_plain if plain else write_turns)(problem, demonstrations),
            target=f"{problem.code}\n{DONE}" if plain else fenced(problem.code),
            meta={"tests": problem.tests},
        )


def write_plain(asked: MbppProblem, demonstrations: list[MbppProblem]) -> str:
    """Writes demonstrations and problem as one text that ends with `[BEGIN]`."""
    texts = [f"{ask(demo)}\n{BEGIN}\n{demo.code}\n{DONE}\n\n" for demo in demonstrations]
    return "".join(texts) + f"{ask(asked)}\n{BEGIN}\n"


def write_turns(asked: MbppProblem, demonstrations: list[MbppProblem]) -> list[Turn]:
    """Writes each demonstration as a user turn and an assistant turn, then the problem."""
    return conversation([(ask(demo), fenced(demo.code)) for demo in demonstrations], ask(asked))


def ask(problem: MbppProblem) -> str:
    """Writes description and assertions of a problem."""
    tests = "\n".join(problem.test_list)
    return f"Task for a Python programmer: {problem.text} These tests must pass:\n\n{tests}"


def problem_of(found: Found) -> MbppProblem:
    """Reads a problem of either official file."""
    fields = {"text": found.fields.get("prompt"), **found.fields}
    return converted(unix_lines(fields), MbppProblem, found.where, REPAIR)

"""MBPP, small programs from a description and tests, from the official files or the hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eval.tasks.base import Example, Turn, content_id, cut_at
from eval.tasks.code import OF_PROTOCOL, CodeTask, fenced, python_blocks
from eval.tasks.code_protocols import MBPP
from eval.tasks.problem_files import Found, hub_objects, read_objects, text_of, texts_of

HUB_ID = "google-research-datasets/mbpp"
HUB_SPLITS = {"test": "test", "val": "validation", "train": "train", "prompt": "prompt"}
FILES = ("mbpp.jsonl", "sanitized-mbpp.json")
SOURCE = "https://github.com/google-research/google-research/tree/master/mbpp"

NUMBERS: Mapping[str, range] = {
    "test": range(11, 511),
    "val": range(511, 601),
    "train": range(601, 975),
    "prompt": range(1, 11),
}
"""The paper's splits, by `task_id`."""

# The paper shows 2, 3 and 4; who wants more gets the others of the split.
SHOWN = (2, 3, 4, 1, 5, 6, 7, 8, 9, 10)
BEGIN, DONE = "[BEGIN]", "[DONE]"


class Problem(NamedTuple):
    """A problem of MBPP.

    Attributes:
        number: Its `task_id`.
        text: What is to be written.
        code: The reference solution.
        shown: The assertions, which the prompt shows.
        tests: Imports, set-up and assertions, as they are run.
    """

    number: int
    text: str
    code: str
    shown: str
    tests: str


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
    Differs: the words around description and assertions are our own. Line ends are those of Unix;
    the official file mixes both kinds. A problem's set-up is run, which the harness leaves out. A
    program has 5 s of processor time. Published scores of diffusion models have an answer length
    between 256 (LLaDA, Fast-dLLM, d3LLM) and 1024 (Dream), and none or three demonstrations.

    Attributes:
        num_fewshot: Demonstrations in a prompt; -1 is the protocol's number.
    """

    num_fewshot: int = OF_PROTOCOL

    name = "mbpp"
    protocols = MBPP
    splits = tuple(NUMBERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_fewshot == OF_PROTOCOL:
            object.__setattr__(self, "num_fewshot", self.published.num_fewshot)
        if not 0 <= self.num_fewshot < len(SHOWN):
            raise ValueError(f"num_fewshot is 0 to {len(SHOWN) - 1}, got {self.num_fewshot}.")

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.published.is_instruction else (DONE,)

    def problems(self, split: str) -> list[Example]:
        asked = self._read(split)
        shown = self._read("prompt") if self.num_fewshot else []
        by_number = {problem.number: problem for problem in shown}
        pool = [by_number[number] for number in SHOWN if number in by_number]
        return [self._example(problem, self._demonstrations(problem, pool)) for problem in asked]

    def program(self, example: Example, text: str) -> str:
        """Returns the text before `[DONE]`, or the first block of Python."""
        # A chat model answers a plain prompt with a fenced block all the same.
        is_fenced = self.published.is_chat and bool(python_blocks(text))
        if not self.published.is_instruction and not is_fenced:
            return cut_at(text, self.stop)
        return (python_blocks(text) or [text])[0]

    def _read(self, split: str) -> list[Problem]:
        if self.path is None:
            found = hub_objects(HUB_ID, "full", HUB_SPLITS[split], FILES)
        else:
            found = read_objects(self.path, FILES, SOURCE)
        problems = [problem_of(one) for one in found]
        return [problem for problem in problems if problem.number in NUMBERS[split]]

    def _demonstrations(self, asked: Problem, pool: list[Problem]) -> list[Problem]:
        others = [problem for problem in pool if problem.number != asked.number]
        if len(others) < self.num_fewshot:
            raise ValueError(
                f"num_fewshot must be at most the number of other problems with task_id 1 to 10, "
                f"{len(others)}, got {self.num_fewshot}; give the whole file, or num_fewshot=0."
            )
        return others[: self.num_fewshot]

    def _example(self, problem: Problem, demonstrations: list[Problem]) -> Example:
        plain = not self.published.is_instruction
        return Example(
            id=f"MBPP/{problem.number}-{content_id(problem.text + problem.tests)}",
            prompt=(write_plain if plain else write_turns)(problem, demonstrations),
            target=f"{problem.code}\n{DONE}" if plain else fenced(problem.code),
            meta={"tests": problem.tests},
        )


def write_plain(asked: Problem, demonstrations: list[Problem]) -> str:
    """Writes demonstrations and problem as one text that ends with `[BEGIN]`."""
    shown = [f"{ask(one)}\n{BEGIN}\n{one.code}\n{DONE}\n\n" for one in demonstrations]
    return "".join(shown) + f"{ask(asked)}\n{BEGIN}\n"


def write_turns(asked: Problem, demonstrations: list[Problem]) -> list[Turn]:
    """Writes each demonstration as a user turn and an assistant turn, then the problem."""
    turns: list[Turn] = []
    for one in demonstrations:
        turns.append({"role": "user", "content": ask(one)})
        turns.append({"role": "assistant", "content": fenced(one.code)})
    return [*turns, {"role": "user", "content": ask(asked)}]


def ask(problem: Problem) -> str:
    """Writes description and assertions of a problem."""
    return f"Task for a Python programmer: {problem.text} These tests must pass:\n\n{problem.shown}"


def problem_of(found: Found) -> Problem:
    """Reads a problem; the sanitized file says `prompt` where the full one says `text`.

    Raises:
        ValueError: If a field is missing or holds something else.
    """
    number = found.fields.get("task_id")
    if not isinstance(number, int) or not any(number in split for split in NUMBERS.values()):
        raise ValueError(
            f"{found.where} must have a 'task_id' from 1 to 974, which decides its split, got "
            f"{number!r}; repair or remove it."
        )
    assertions = texts_of(found, "test_list")
    if not assertions:
        raise ValueError(f"{found.where} must have a test in 'test_list', got none; remove it.")
    setup = text_of(found, "test_setup_code") if "test_setup_code" in found.fields else ""
    return Problem(
        number=number,
        text=text_of(found, "text", "prompt"),
        code=text_of(found, "code"),
        shown="\n".join(assertions),
        tests="\n".join([*texts_of(found, "test_imports"), setup, *assertions, ""]),
    )

"""HumanEval, functions to complete, from the official file or the hub."""

import re
from dataclasses import dataclass

import msgspec

from dllm_decode.core.stopping import cut_at
from dllm_decode.settings.files import REPAIR, converted
from eval.tasks.base import Example, Turn, content_id, conversation
from eval.tasks.code import CodeTask, fenced, unix_lines
from eval.tasks.problem_files import DataSet

DATA = DataSet(
    "openai/openai_humaneval", None, ("HumanEval.jsonl", "HumanEval.jsonl.gz"),
    "https://github.com/openai/human-eval",
)  # fmt: skip
STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


class HumanEvalProblem(msgspec.Struct):
    """A problem of the official file."""

    task_id: str
    prompt: str
    canonical_solution: str
    test: str
    entry_point: str


@dataclass(frozen=True)
class HumanEval(CodeTask):
    """HumanEval: complete a function from its signature and docstring. There are no demonstrations.

    `lm_eval`: the prompt unchanged; the answer continues it and ends where something new begins at
    the left margin. `instruct`: one user turn that asks for the whole function in a fenced block.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
    https://arxiv.org/abs/2107.03374; pass@1 of one answer a problem. Prompt and stop strings of
    `lm_eval`: the task `humaneval` of lm-evaluation-harness 0.4.13,
    https://github.com/EleutherAI/lm-evaluation-harness.
    Differs: a program has 5 s of processor time, the paper's 3 s on the clock; its module is not
    named `__main__`. The wording of `instruct` is our own, and the answer's block is not begun for
    the model, as `humaneval_instruct` of the harness does. Published scores of diffusion models
    have an answer length between 256 (Fast-dLLM, d3LLM) and 768 (Dream); 512 is LLaDA's.
    """

    name = "humaneval"
    splits = ("test",)

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.is_instruction else STOP

    def read(self, split: str) -> list[Example]:
        rows = DATA.rows(self.path, split)
        return [
            self._example(converted(unix_lines(row.fields), HumanEvalProblem, row.where, REPAIR))
            for row in rows
        ]

    def program(self, example: Example, text: str) -> str:
        """Returns prompt and continuation, or the block that defines the function.

        A block that does not define the function continues the prompt. The lines of the prompt
        before the function, such as imports, are kept.
        """
        prompt: str = example.meta["prompt"]
        blocks = self.blocks(text)
        if blocks is None:
            return prompt + cut_at(text, self.stop)
        header = re.compile(rf"^def +{re.escape(example.meta['entry_point'])}\b", re.MULTILINE)
        chosen = next((block for block in blocks if header.search(block)), None)
        if chosen is None:
            return prompt + blocks[0]
        begin = header.search(prompt)
        return (prompt[: begin.start()] if begin else "") + chosen

    def _example(self, problem: HumanEvalProblem) -> Example:
        prompt, solution = problem.prompt, problem.canonical_solution
        tests = f"{problem.test}\ncheck({problem.entry_point})\n"
        plain = not self.is_instruction
        return Example(
            id=f"{problem.task_id}-{content_id(prompt + tests)}",
            prompt=prompt if plain else ask(prompt),
            target=solution if plain else fenced(prompt + solution),
            meta={"tests": tests, "prompt": prompt, "entry_point": problem.entry_point},
        )


def ask(prompt: str) -> list[Turn]:
    """Writes a problem as one user turn."""
    wish = "Complete this Python function. Answer with the whole function in one fenced block."
    return conversation([], f"{wish}\n\n{fenced(prompt)}")

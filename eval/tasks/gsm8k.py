"""GSM8K, grade-school word problems, from the official files or the hub."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from dllm_decode.core.stopping import cut_at
from dllm_decode.settings.files import REPAIR, converted
from eval.tasks.base import Example, Turn, content_id, conversation
from eval.tasks.problem_files import DataSet, PublishedTask
from samplers.checks import require_count

DATA = DataSet(
    "openai/gsm8k", "main", ("test.jsonl", "train.jsonl"),
    "https://github.com/openai/grade-school-math",
)  # fmt: skip

FEWSHOT_SEED = 1234
ENDS = ("</s>", "<|im_end|>")
ANNOTATION = re.compile(r"<<[^<>]*>>")
STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = re.compile(r"[,$]|(?s:.*#### )|\.$")


class WorkedQuestion(msgspec.Struct):
    """A row of the official files: a question with its worked answer."""

    question: str
    answer: Annotated[str, Meta(pattern=STRICT.pattern)]


class Wording(NamedTuple):
    """The words around a question and its answer.

    `ask` writes a question that the answer continues, `tell` the worked answer of a demonstration;
    one of `stop` ends an answer, and `strict` finds the number where the answer states it.
    """

    ask: Callable[[str], str]
    tell: Callable[[str], str]
    stop: tuple[str, ...]
    strict: re.Pattern[str]


def in_a_sentence(answer: str) -> str:
    """Writes a worked answer on one line, its number in the sentence `The answer is 18.`."""
    steps, _, number = answer.rpartition("#### ")
    return f"{' '.join(steps.split())} The answer is {number.strip()}."


def harness(question: str) -> Wording:
    """Returns a wording of the harness's task `gsm8k`, whose answers end with `#### number`."""
    return Wording(question.format, str, ("Question:", *ENDS), STRICT)


def chain_of_thought(question: str) -> Wording:
    """Returns a wording of the harness's task `gsm8k_cot`, whose answers end with a sentence."""
    strict = re.compile(r"The answer is (\-?[0-9\.\,]+)")
    return Wording(question.format, in_a_sentence, ("Q:", *ENDS), strict)


WORDINGS: Mapping[str, Wording] = {
    "question": harness("Question: {}\nAnswer:"),
    # OpenCompass, which LLaDA's authors use.
    "question_steps": harness("Question: {}\nLet's think step by step\nAnswer:"),
    "short": chain_of_thought("Q: {}\nA:"),
    # The task `gsm8k_cot_zeroshot`.
    "short_steps": chain_of_thought("Q: {}\nA: Let's think step by step."),
}


@dataclass(frozen=True)
class Gsm8k(PublishedTask):
    """GSM8K under the protocols that published numbers come from.

    A protocol is a wording, a number of demonstrations, plain text or chat turns, and the lengths
    of answer and blocks; model, sampler and temperature are not part of it. `docs/evaluation.md`
    lists them. Demonstrations come from `train.jsonl` in the folder of the file.

    Source: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems",
    https://arxiv.org/abs/2110.14168. Wording, extraction and stop strings: the tasks `gsm8k`,
    `gsm8k_cot` and `gsm8k_cot_zeroshot` of lm-evaluation-harness 0.4.13,
    https://github.com/EleutherAI/lm-evaluation-harness. Settings: the evaluation scripts of LLaDA,
    https://github.com/ML-GSAI/LLaDA, Fast-dLLM, https://github.com/NVlabs/Fast-dLLM, dParallel,
    https://github.com/czg1225/dParallel, D2F,
    https://github.com/zhijie-group/Discrete-Diffusion-Forcing, d3LLM,
    https://github.com/hao-ai-lab/d3LLM, dLLM, https://github.com/ZHZisZZ/dllm, and Dream,
    https://github.com/DreamLM/Dream.

    Differs: demonstrations are training rows without calculator annotations (`<<48/2=24>>`). Fixed
    demonstrations are the first rows, not the hand-written rows of OpenCompass and `gsm8k_cot`;
    others are drawn by Python's generator, not in the harness's order. Under the wording `Q:`, a
    number that ends the text counts whole; the harness wants one more character and would read 1
    from 18. `llada_pure`, `llada_1_5` and `dllm` are published with EOS held back, which is no part
    of a prompt.

    Attributes:
        num_fewshot: Demonstrations in a prompt; None is the protocol's number.
    """

    num_fewshot: int | None = None

    name = "gsm8k"
    version = 1
    primary = "answer_flexible"
    splits = ("train", "test")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("num_fewshot", self.num_fewshot, 0, optional=True)

    @property
    def wording(self) -> Wording:
        """The words of the published setting."""
        return WORDINGS[self.published.wording]

    @property
    def stop(self) -> tuple[str, ...]:
        return self.wording.stop

    def read(self, split: str) -> list[Example]:
        rows = self._rows(split)
        demonstrations = self._demonstrations(rows)
        return [
            Example(
                id=f"{split}-{i}-{content_id(row.question)}",
                prompt=self._prompt(row, demonstrations[i]),
                target=row.answer,
                meta={"answer": gold_of(row.answer), "split": split, "row": i},
            )
            for i, row in enumerate(rows)
        ]

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer, cut at the first stop string.

        `answer_flexible` (primary): the last number is right. `answer`: the number after the first
        `####`, or `The answer is` where the protocol writes `Q:`, is right. Numbers are compared as
        text without `,`, `$` and a final full stop, so that `18.00` is not `18`.
        """
        text = cut_at(text, self.stop)
        gold = example.meta["answer"]
        return {
            "answer": float(strict_answer(text, self.wording.strict) == gold),
            "answer_flexible": float(flexible_answer(text) == gold),
        }

    def extract(self, text: str) -> str:
        """Returns the last number; the whole text if it has no number."""
        return flexible_answer(cut_at(text, self.stop)) or super().extract(text)

    def _rows(self, split: str) -> list[WorkedQuestion]:
        path = None if self.path is None else file_of(self.path, split)
        objects = DATA.rows(path, split)
        rows = [converted(item.fields, WorkedQuestion, item.where, REPAIR) for item in objects]
        return [WorkedQuestion(row.question, ANNOTATION.sub("", row.answer)) for row in rows]

    def _demonstrations(self, rows: list[WorkedQuestion]) -> list[list[WorkedQuestion]]:
        """Returns the demonstrations of each question; no question demonstrates itself."""
        protocol = self.published
        count = protocol.num_fewshot if self.num_fewshot is None else self.num_fewshot
        if count == 0:
            return [[] for _ in rows]
        pool = self._rows("train")
        if count >= len(pool):
            raise ValueError(
                f"num_fewshot must be below the number of training rows, {len(pool)}, got {count}."
            )
        rng = random.Random(FEWSHOT_SEED)
        demonstrations: list[list[WorkedQuestion]] = []
        for asked in rows:
            chosen = rng.sample(pool, count) if protocol.choose == "anew" else pool[:count]
            # A substitute, in case the question is among the chosen rows.
            spare = islice((row for row in pool if row not in chosen), 1)
            others = [row for row in (*chosen, *spare) if row.question != asked.question]
            demonstrations.append(others[:count])
        return demonstrations

    def _prompt(
        self, asked: WorkedQuestion, demonstrations: list[WorkedQuestion]
    ) -> str | list[Turn]:
        ask, tell, *_ = self.wording
        pairs = [(ask(row.question), tell(row.answer)) for row in demonstrations]
        question = ask(asked.question)
        if self.published.write == "turns":
            return conversation(pairs, question)
        text = "\n\n".join([*(" ".join(pair) for pair in pairs), question])
        return conversation([], text) if self.published.write == "one_turn" else text


def strict_answer(text: str, pattern: re.Pattern[str] = STRICT) -> str | None:
    """Returns the first number that an answer states, after `#### ` by default, normalised."""
    match = pattern.search(text)
    return normalised(match[1]) if match else None


def flexible_answer(text: str) -> str | None:
    """Returns the last number, normalised."""
    numbers = [match[0] for match in FLEXIBLE.finditer(text)]
    return normalised(numbers[-1]) if numbers else None


def normalised(number: str) -> str:
    """Removes the parts that matching ignores: `,`, `$`, a lead-in up to `#### `, a final `.`."""
    return IGNORED.sub("", number)


def gold_of(answer: str) -> str:
    """Returns the right number of a worked answer."""
    return normalised(answer.rsplit("#### ", 1)[-1].strip())


def file_of(path: str, split: str) -> str:
    """Returns a split's file: `<split>.jsonl` in the folder `path`; `path` or a file next to it."""
    file = Path(path)
    if file.is_dir():
        return str(file / f"{split}.jsonl")
    return path if split == "test" else str(file.with_name(f"{split}.jsonl"))

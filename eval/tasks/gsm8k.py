"""GSM8K, grade-school word problems, from the official files or the hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from dllm_decode.core.stopping import cut_at
from eval.files import REPAIR, converted
from eval.tasks.base import Example, content_id
from eval.tasks.gsm8k_protocols import PROTOCOLS, STRICT, Protocol, WorkedQuestion, write_plain
from eval.tasks.problem_files import DataSet, PublishedTask
from samplers.checks import require_count

DATA = DataSet(
    "openai/gsm8k", "main", ("test.jsonl", "train.jsonl"),
    "https://github.com/openai/grade-school-math",
)  # fmt: skip

ANNOTATION = re.compile(r"<<[^<>]*>>")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = re.compile(r"[,$]|(?s:.*#### )|\.$")


class Gsm8kProblem(msgspec.Struct):
    """A row of the official files."""

    question: str
    answer: Annotated[str, Meta(pattern=STRICT.pattern)]


@dataclass(frozen=True)
class Gsm8k(PublishedTask[Protocol]):
    """GSM8K under the protocols that published numbers come from.

    A protocol is a wording, a number of demonstrations, plain text or chat turns, and the lengths
    of answer and blocks; model, sampler and temperature are not part of it. They are listed in
    `eval.tasks.gsm8k_protocols`. Demonstrations come from `train.jsonl` in the folder of the file.

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
    ones are the first rows, not the hand-written ones of OpenCompass and `gsm8k_cot`; drawn ones
    are drawn by Python's generator, not in the harness's order. Under the wording `Q:`, a number
    that ends the text counts whole; the harness wants one more character and would read 1 from
    18. `llada_pure`, `llada_1_5` and `dllm` are published with EOS held back, which is no part of
    a prompt.

    Attributes:
        num_fewshot: Demonstrations in a prompt; None is the protocol's number.
    """

    num_fewshot: int | None = None

    name = "gsm8k"
    version = 1
    primary = "answer_flexible"
    splits = ("train", "test")
    protocols = PROTOCOLS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("num_fewshot", self.num_fewshot, 0, optional=True)

    @property
    def stop(self) -> tuple[str, ...]:
        return self.published.wording.stop

    @property
    def prompts(self) -> str:
        return "plain" if self.published.write is write_plain else "chat"

    def read(self, split: str) -> list[Example]:
        rows = self._rows(split)
        demonstrations = self._demonstrations(rows)
        protocol = self.published
        return [
            Example(
                id=f"{split}-{i}-{content_id(row.question)}",
                prompt=protocol.write(protocol.wording, row.question, demonstrations[i]),
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
            "answer": float(strict_answer(text, self.published.wording.strict) == gold),
            "answer_flexible": float(flexible_answer(text) == gold),
        }

    def extract(self, text: str) -> str:
        """Returns the last number; all of the text if there is none."""
        return flexible_answer(cut_at(text, self.stop)) or super().extract(text)

    def _rows(self, split: str) -> list[WorkedQuestion]:
        path = None if self.path is None else file_of(self.path, split)
        problems = (
            converted(row, Gsm8kProblem, where, REPAIR) for row, where in DATA.rows(path, split)
        )
        return [WorkedQuestion(one.question, ANNOTATION.sub("", one.answer)) for one in problems]

    def _demonstrations(self, rows: list[WorkedQuestion]) -> list[list[WorkedQuestion]]:
        protocol = self.published
        count = protocol.num_fewshot if self.num_fewshot is None else self.num_fewshot
        if count == 0:
            return [[] for _ in rows]
        pool = self._rows("train")
        if count >= len(pool):
            raise ValueError(
                f"num_fewshot must be below the number of training rows, {len(pool)}, got {count}."
            )
        return [
            [row for row in drawn if row.question != asked.question][:count]
            for asked, drawn in zip(rows, protocol.choose(pool, count, len(rows)), strict=True)
        ]


def strict_answer(text: str, pattern: re.Pattern[str] = STRICT) -> str | None:
    """Returns the number where an answer first states it, after `#### ` by default, normalised."""
    found = pattern.search(text)
    return normalised(found[1]) if found else None


def flexible_answer(text: str) -> str | None:
    """Returns the last number, normalised."""
    found = [match[0] for match in FLEXIBLE.finditer(text)]
    return normalised(found[-1]) if found else None


def normalised(number: str) -> str:
    """Removes what the exact match ignores: `,`, `$`, a lead-in up to `#### `, a final `.`."""
    return IGNORED.sub("", number)


def gold_of(answer: str) -> str:
    """Returns the right number of a worked answer."""
    return normalised(answer.rsplit("#### ", 1)[-1].strip())


def file_of(path: str, split: str) -> str:
    """Returns the file of a split: the path itself, or its namesake in the folder or next to it."""
    given = Path(path)
    if given.is_dir():
        return str(given / f"{split}.jsonl")
    return path if split == "test" else str(given.with_name(f"{split}.jsonl"))

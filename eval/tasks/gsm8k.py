"""GSM8K, grade-school word problems, from the official files or the hub."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.tasks.base import Example, Task, content_id, cut_at
from eval.tasks.gsm8k_protocols import PROTOCOLS, STRICT, Protocol, Row, write_plain
from eval.tasks.problem_files import Found, hub_objects, read_objects

HUB_ID = "openai/gsm8k"
FILES = ("test.jsonl", "train.jsonl")
SOURCE = "https://github.com/openai/grade-school-math"
OF_PROTOCOL = -1

ANNOTATION = re.compile(r"<<[^<>]*>>")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = re.compile(r"[,$]|(?s:.*#### )|\.$")


@dataclass(frozen=True)
class Gsm8k(Task):
    """GSM8K under the protocols that published numbers come from.

    A protocol is a wording, a number of demonstrations, plain text or chat turns, and the lengths
    of answer and blocks; model, sampler and temperature are not part of it. The table of
    `eval.tasks.gsm8k_protocols` lists them.

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
        path: A file of JSON lines, or a folder with `test.jsonl` and `train.jsonl`; None asks the
            hub through `datasets`. Demonstrations come from `train.jsonl` beside the file.
        num_fewshot: Demonstrations in a prompt; None is the protocol's number.
        protocol: Which published setting.
        gen_length: Default answer length in tokens; -1 is the protocol's.
    """

    path: str | None = None
    num_fewshot: int | None = None
    protocol: str = "lm_eval"
    gen_length: int = OF_PROTOCOL

    name = "gsm8k"
    version = 1
    primary = "answer_flexible"
    splits = ("train", "test")

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(
                f"protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}."
            )
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"num_fewshot must be at least 0, got {self.num_fewshot}.")
        if self.gen_length == OF_PROTOCOL:
            object.__setattr__(self, "gen_length", self._protocol.gen_length)
        if self.gen_length < 1:
            raise ValueError(f"gen_length must be at least 1, got {self.gen_length}.")

    @property
    def stop(self) -> tuple[str, ...]:
        return self._protocol.wording.stop

    @property
    def block_length(self) -> int:
        return self._protocol.block_length

    @property
    def prompts(self) -> str:
        return "plain" if self._protocol.write is write_plain else "chat"

    def examples(
        self, split: str = "test", num_examples: int | None = None, seed: int = 0
    ) -> Sequence[Example]:
        """Returns questions with their prompts.

        With seed 0 they are the first of the file, in its order; other seeds draw from the file.
        A question has the same demonstrations whichever others are asked for.

        Raises:
            ValueError: If the data cannot be read, or there are fewer than `num_examples` rows.
        """
        self.require(split, num_examples)
        rows = self._rows(split)
        wanted = len(rows) if num_examples is None else num_examples
        self.require_enough(split, len(rows), wanted)
        chosen = list(range(wanted))
        if seed != 0:
            chosen = random.Random(f"gsm8k;{split};{seed}").sample(range(len(rows)), wanted)
        demonstrations = self._demonstrations(rows)
        protocol = self._protocol
        return [
            Example(
                id=f"{split}-{i}-{content_id(rows[i].question)}",
                prompt=protocol.write(protocol.wording, rows[i].question, demonstrations[i]),
                target=rows[i].answer,
                meta={"answer": gold_of(rows[i].answer), "split": split, "row": i},
            )
            for i in chosen
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
            "answer": float(strict_answer(text, self._protocol.wording.strict) == gold),
            "answer_flexible": float(flexible_answer(text) == gold),
        }

    def extract(self, text: str) -> str:
        """Returns the last number; all of the text if there is none."""
        return flexible_answer(cut_at(text, self.stop)) or super().extract(text)

    @property
    def _protocol(self) -> Protocol:
        return PROTOCOLS[self.protocol]

    def _rows(self, split: str) -> list[Row]:
        if self.path is None:
            found = hub_objects(HUB_ID, "main", split, FILES)
        else:
            file = file_of(self.path, split)
            found = read_objects(str(file), [file.name], SOURCE)
        return [row_of(one) for one in found]

    def _demonstrations(self, rows: list[Row]) -> list[list[Row]]:
        protocol = self._protocol
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


def file_of(path: str, split: str) -> Path:
    """Returns the file of a split: the path itself, or its namesake in the folder or beside it."""
    given = Path(path)
    if given.is_dir():
        return given / f"{split}.jsonl"
    return given if split == "test" else given.with_name(f"{split}.jsonl")


def row_of(found: Found) -> Row:
    """Reads a question with its worked answer.

    Raises:
        ValueError: If one of them is missing, or the answer ends without its number.
    """
    fields, where = found
    if not all(isinstance(fields.get(name), str) for name in ("question", "answer")):
        raise ValueError(
            f"{where} must have the texts 'question' and 'answer', got {sorted(fields)}; "
            "repair or remove the line."
        )
    if not STRICT.search(fields["answer"]):
        raise ValueError(
            f"{where} must have an answer that ends with '#### number', got "
            f"{fields['answer'][-60:]!r}; repair or remove the line."
        )
    return Row(fields["question"], ANNOTATION.sub("", fields["answer"]))

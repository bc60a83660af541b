"""GSM8K, grade-school word problems, from the official files or the hub."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from eval.tasks.base import Example, Task, Turn, content_id, cut_at

HUB_ID = "openai/gsm8k"
SPLITS = ("train", "test")
FEWSHOT_SEED = 1234

ANNOTATION = re.compile(r"<<[^<>]*>>")
STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = re.compile(r"[,$]|(?s:.*#### )|\.$")


class Row(NamedTuple):
    """A question with its worked answer, calculator annotations removed."""

    question: str
    answer: str


@dataclass(frozen=True)
class Gsm8k(Task):
    r"""GSM8K with few-shot prompts of three protocols that published numbers come from.

    `lm_eval`: plain text, demonstrations and question as `Question: ...\nAnswer: ...`, drawn
    anew for each question with seed 1234. `fast_dllm`: the same text as one user turn. `llada`:
    fixed demonstrations as user and assistant turns that ask for reasoning step by step.

    Source: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems",
    https://arxiv.org/abs/2110.14168. Extraction and prompts follow the task `gsm8k` of
    lm-evaluation-harness 0.4.13, https://github.com/EleutherAI/lm-evaluation-harness.
    Differs: calculator annotations (`<<48/2=24>>`) are removed from demonstrations; the
    demonstrations of `llada` are the first training rows, not those of OpenCompass.

    Attributes:
        path: A file of JSON lines, or a folder with `test.jsonl` and `train.jsonl`; None asks the
            hub through `datasets`. Demonstrations come from `train.jsonl` beside the file.
        num_fewshot: Demonstrations in a prompt; None is the protocol's number (5, 5, 4).
        protocol: How prompts are written: `lm_eval`, `fast_dllm` or `llada`.
        gen_length: Default answer length in tokens.
    """

    path: str | None = None
    num_fewshot: int | None = None
    protocol: str = "lm_eval"
    gen_length: int = 256

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}, got {self.protocol!r}.")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"num_fewshot is at least 0, got {self.num_fewshot}.")
        if self.gen_length < 1:
            raise ValueError(f"gen_length is at least 1, got {self.gen_length}.")

    @property
    def name(self) -> str:
        return "gsm8k"

    @property
    def version(self) -> int:
        return 1

    @property
    def primary(self) -> str:
        return "answer_flexible"

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS

    @property
    def stop(self) -> tuple[str, ...]:
        return ("Question:", "</s>", "<|im_end|>")

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
        if wanted > len(rows):
            raise ValueError(f"num_examples is at most {len(rows)} for {split!r}, got {wanted}.")
        chosen = list(range(wanted))
        if seed != 0:
            chosen = random.Random(f"gsm8k;{split};{seed}").sample(range(len(rows)), wanted)
        demonstrations = self._demonstrations(rows)
        write = PROTOCOLS[self.protocol].write
        return [
            Example(
                id=f"{split}-{i}-{content_id(rows[i].question)}",
                prompt=write(rows[i].question, demonstrations[i]),
                target=rows[i].answer,
                meta={"answer": gold_of(rows[i].answer), "split": split, "row": i},
            )
            for i in chosen
        ]

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer, cut at the first stop string.

        `answer_flexible` (primary): the last number is right. `answer`: the number after the first
        `####` is right. Numbers are compared as text without `,`, `$` and a final full stop, so
        that `18.00` is not `18`.
        """
        text = cut_at(text, self.stop)
        gold = example.meta["answer"]
        return {
            "answer": float(strict_answer(text) == gold),
            "answer_flexible": float(flexible_answer(text) == gold),
        }

    @cached_property
    def _num_fewshot(self) -> int:
        default = PROTOCOLS[self.protocol].num_fewshot
        return default if self.num_fewshot is None else self.num_fewshot

    def _rows(self, split: str) -> list[Row]:
        return rows_of_hub(split) if self.path is None else read_rows(file_of(self.path, split))

    def _demonstrations(self, rows: list[Row]) -> list[list[Row]]:
        count = self._num_fewshot
        if count == 0:
            return [[] for _ in rows]
        pool = self._rows("train")
        if count >= len(pool):
            raise ValueError(
                f"num_fewshot is below the number of training rows, {len(pool)}, got {count}."
            )
        return [
            [row for row in drawn if row.question != asked.question][:count]
            for asked, drawn in zip(
                rows, PROTOCOLS[self.protocol].choose(pool, count, len(rows)), strict=True
            )
        ]


class Protocol(NamedTuple):
    """A way to write prompts.

    Attributes:
        num_fewshot: Its usual number of demonstrations.
        choose: Lists at least `count` demonstrations for each of `num_questions` questions.
        write: Puts a question and its demonstrations into a prompt.
    """

    num_fewshot: int
    choose: Callable[[list[Row], int, int], list[list[Row]]]
    write: Callable[[str, list[Row]], str | list[Turn]]


def choose_anew(pool: list[Row], count: int, num_questions: int) -> list[list[Row]]:
    """Draws demonstrations for each question in turn, one spare in case it draws the question."""
    rng = random.Random(FEWSHOT_SEED)
    drawn = [rng.sample(pool, count) for _ in range(num_questions)]
    return [[*rows, next(row for row in pool if row not in rows)] for rows in drawn]


def choose_first(pool: list[Row], count: int, num_questions: int) -> list[list[Row]]:
    """Takes the first rows for every question, one spare in case the question is among them."""
    return [pool[: count + 1] for _ in range(num_questions)]


def write_plain(question: str, demonstrations: list[Row]) -> str:
    """Writes demonstrations and question as one text that ends with `Answer:`."""
    shown = [f"Question: {row.question}\nAnswer: {row.answer}\n\n" for row in demonstrations]
    return "".join(shown) + f"Question: {question}\nAnswer:"


def write_one_turn(question: str, demonstrations: list[Row]) -> list[Turn]:
    """Writes the plain text as one user turn."""
    return [{"role": "user", "content": write_plain(question, demonstrations)}]


def write_turns(question: str, demonstrations: list[Row]) -> list[Turn]:
    """Writes each demonstration as a user turn and an assistant turn, then the question."""
    turns: list[Turn] = []
    for row in demonstrations:
        turns.append({"role": "user", "content": ask_for_steps(row.question)})
        turns.append({"role": "assistant", "content": row.answer})
    return [*turns, {"role": "user", "content": ask_for_steps(question)}]


def ask_for_steps(question: str) -> str:
    """Writes a question so that it asks for reasoning."""
    return f"Question: {question}\nLet's think step by step\nAnswer:"


PROTOCOLS: Mapping[str, Protocol] = {
    "lm_eval": Protocol(5, choose_anew, write_plain),
    "fast_dllm": Protocol(5, choose_anew, write_one_turn),
    "llada": Protocol(4, choose_first, write_turns),
}


def strict_answer(text: str) -> str | None:
    """Returns the number after the first `#### `, normalised."""
    found = STRICT.search(text)
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


def read_rows(path: Path) -> list[Row]:
    """Reads a file of JSON lines with the fields `question` and `answer`.

    Raises:
        ValueError: If the file is missing or empty, or a line is not such a row.
    """
    if not path.is_file():
        raise ValueError(
            f"GSM8K is read from {path}, got no such file; download {path.name} from "
            "https://github.com/openai/grade-school-math and give its path."
        )
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = [row_of(line, path, i) for i, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} holds one JSON object a line, got no line; download it again.")
    return rows


def row_of(line: str, path: Path, number: int) -> Row:
    """Reads one line; errors name the file and the line."""
    where = f"Line {number} of {path}"
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is a JSON object, got {line[:60]!r} ({error.msg}); repair or remove the line."
        ) from error
    return checked(fields, where)


def checked(fields: Any, where: str) -> Row:
    """Returns the row that a JSON object describes."""
    wanted = ("question", "answer")
    if not isinstance(fields, dict) or not all(isinstance(fields.get(f), str) for f in wanted):
        got = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
        raise ValueError(
            f"{where} has the texts 'question' and 'answer', got {got}; repair or remove the line."
        )
    if not STRICT.search(fields["answer"]):
        raise ValueError(
            f"{where} has an answer that ends with '#### number', got {fields['answer'][-60:]!r}; "
            "repair or remove the line."
        )
    return Row(fields["question"], ANNOTATION.sub("", fields["answer"]))


def rows_of_hub(split: str) -> list[Row]:
    """Loads a split from the hub.

    Raises:
        ValueError: If `datasets` is not installed or the hub cannot be reached.
    """
    remedy = "give path=, a folder with test.jsonl and train.jsonl"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"GSM8K without a path needs the package `datasets`, got none; install it or {remedy}."
        ) from error
    try:
        table = load_dataset(HUB_ID, "main", split=split)
    except OSError as error:
        raise ValueError(
            f"GSM8K without a path needs the hub's {HUB_ID}, got {type(error).__name__}; {remedy}."
        ) from error
    return [checked(fields, f"Row {i} of {HUB_ID}") for i, fields in enumerate(table, start=1)]

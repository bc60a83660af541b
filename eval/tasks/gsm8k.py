"""GSM8K, grade-school word problems, from the official files or the hub."""

import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
from msgspec import Meta

from dllm_decode.core.stopping import cut_at
from dllm_decode.settings.files import REPAIR, checked_value
from eval.tasks.base import Example, Turn, content_id, conversation
from eval.tasks.problem_files import FileTask, Found, read_objects
from samplers.checks import require_choice, require_count

HUB_ID = "openai/gsm8k"
SOURCE = "test.jsonl and train.jsonl from https://github.com/openai/grade-school-math"
HUB_TIMEOUT_S = 5.0

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
    one of `stop` ends an answer, `marker` comes before its number, and `strict` finds the number.
    """

    ask: Callable[[str], str]
    tell: Callable[[str], str]
    stop: tuple[str, ...]
    marker: str
    strict: re.Pattern[str]


def with_answer_sentence(answer: str) -> str:
    """Writes a worked answer on one line, its number in the sentence `The answer is 18.`."""
    steps, _, number = answer.rpartition("#### ")
    return f"{' '.join(steps.split())} The answer is {number.strip()}."


def harness(question: str) -> Wording:
    """Returns a wording of the harness's task `gsm8k`, whose answers end with `#### number`."""
    return Wording(question.format, str, ("Question:", *ENDS), "####", STRICT)


def chain_of_thought(question: str) -> Wording:
    """Returns a wording of the harness's task `gsm8k_cot`, whose answers end with a sentence."""
    strict = re.compile(r"The answer is (\-?[0-9\.\,]+)")
    return Wording(question.format, with_answer_sentence, ("Q:", *ENDS), " The answer is", strict)


WORDINGS: Mapping[str, Wording] = {
    "question": harness("Question: {}\nAnswer:"),
    # OpenCompass, which LLaDA's authors use.
    "question_steps": harness("Question: {}\nLet's think step by step\nAnswer:"),
    "short": chain_of_thought("Q: {}\nA:"),
    # The task `gsm8k_cot_zeroshot`.
    "short_steps": chain_of_thought("Q: {}\nA: Let's think step by step."),
}


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published setting, without model, sampler and temperature; lengths are in tokens.

    Attributes:
        num_fewshot: Number of demonstrations.
        gen_length: Length of the answer.
        block_length: Length of a block. A setting without blocks has one block, as long as the
            answer.
        write: "plain": text that stays out of the chat template. "one_turn": the same text as one
            user turn. "turns": instructions, each demonstration a user and an assistant turn.
        choose: The "first" rows demonstrate every question, or rows drawn "anew" for each.
        wording: Name of the words around questions, one of `WORDINGS`.
    """

    num_fewshot: int
    gen_length: int
    block_length: int
    write: Literal["plain", "one_turn", "turns"]
    choose: Literal["first", "anew"]
    wording: str


PROTOCOLS = msgspec.toml.decode(
    Path(__file__).with_name("gsm8k.toml").read_bytes(), type=dict[str, Protocol]
)
"""By name, the published settings."""


@dataclass(frozen=True)
class Gsm8k(FileTask):
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
        path: A file in the official format, or a folder with one; None asks the hub through
            `datasets`.
        protocol: Name of a published setting.
        gen_length: Default answer length in tokens; -1 is the protocol's.
        num_fewshot: Demonstrations in a prompt; None is the protocol's number.
    """

    path: str | None = None
    protocol: str = "lm_eval"
    gen_length: int = -1
    num_fewshot: int | None = None

    name = "gsm8k"
    version = 1
    primary = "answer_flexible"
    splits = ("train", "test")

    def __post_init__(self) -> None:
        require_choice("protocol", self.protocol, tuple(PROTOCOLS))
        if self.gen_length == -1:
            object.__setattr__(self, "gen_length", self.published.gen_length)
        require_count("gen_length", self.gen_length, 1)
        require_count("num_fewshot", self.num_fewshot, 0, optional=True)

    @property
    def published(self) -> Protocol:
        """The setting that `protocol` names."""
        return PROTOCOLS[self.protocol]

    @property
    def prompts(self) -> str:
        return "plain" if self.published.write == "plain" else "chat"

    @property
    def block_length(self) -> int:
        return self.published.block_length

    @property
    def wording(self) -> Wording:
        """The words of the published setting."""
        return WORDINGS[self.published.wording]

    @property
    def marker(self) -> str:
        return self.wording.marker

    def read(self, split: str) -> list[Example]:
        rows = self._rows(split)
        demonstrations = self._demonstrations(rows)
        return [
            Example(
                id=f"{split}-{i}-{content_id(row.question)}",
                prompt=self._prompt(row, demonstrations[i]),
                target=row.answer,
                meta={"answer": _gold_of(row.answer), "split": split, "row": i},
            )
            for i, row in enumerate(rows)
        ]

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer, cut at the first stop string.

        `answer_flexible` (primary): the last number is right. `answer`: the number after the first
        `####`, or `The answer is` where the protocol writes `Q:`, is right. Numbers are compared as
        text without `,`, `$` and a final full stop, so that `18.00` is not `18`.
        """
        text = cut_at(text, self.wording.stop)
        gold = example.meta["answer"]
        return {
            "answer": float(strict_answer(text, self.wording.strict) == gold),
            "answer_flexible": float(flexible_answer(text) == gold),
        }

    def _rows(self, split: str) -> list[WorkedQuestion]:
        objects = (
            _hub_rows(split) if self.path is None else read_objects(_file_of(self.path, split))
        )
        rows = [checked_value(item.fields, WorkedQuestion, item.where, REPAIR) for item in objects]
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


def _gold_of(answer: str) -> str:
    """Returns the right number of a worked answer."""
    return normalised(answer.rsplit("#### ", 1)[-1].strip())


def _file_of(path: str, split: str) -> Path:
    """Returns a split's file: `<split>.jsonl` in the folder `path`; `path` or a file next to it."""
    file = Path(path)
    if file.is_dir():
        file = file / f"{split}.jsonl"
    elif split != "test":
        file = file.with_name(f"{split}.jsonl")
    if not file.is_file():
        raise ValueError(
            f"Problems are read from {file}, got no such file; download {SOURCE} and give their "
            "folder."
        )
    return file


def _hub_rows(split: str) -> list[Found]:
    """Returns the rows of a split on the hub; raises ValueError if hub or `datasets` is missing."""
    remedy = f"give path=, a folder with {SOURCE}"
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise ValueError(
            f"Without a path, {HUB_ID} is read from the hub by the package `datasets`, got none; "
            f"install the extra `eval`, or {remedy}."
        ) from error
    try:
        # Without a network, `datasets` itself would retry for a minute and a half.
        if not config.HF_HUB_OFFLINE:
            with suppress(HTTPError):
                urlopen(config.HF_ENDPOINT, timeout=HUB_TIMEOUT_S).close()
        table = load_dataset(HUB_ID, "main", split=split)
    except OSError as error:
        raise ValueError(
            f"{HUB_ID} must be in reach at {config.HF_ENDPOINT} or in the cache, got: {error}. "
            f"Set HF_HUB_OFFLINE=1 if it was downloaded before, or {remedy}."
        ) from error
    return [Found(row, f"Row {i} of {HUB_ID}") for i, row in enumerate(table, start=1)]

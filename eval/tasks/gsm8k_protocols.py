"""How published settings of GSM8K write their prompts, and with which lengths they decode.

Prompts begin with `Question:` or `Q:`, some ask for reasoning step by step. Fixed demonstrations
are the same for every question; drawn ones are drawn anew for each, with seed 1234. Plain prompts
stay out of the chat template. `docs/evaluation.md` has the settings as a table.
"""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from eval.tasks.base import Turn, conversation
from eval.tasks.problem_files import read_protocols

FEWSHOT_SEED = 1234
ENDS = ("</s>", "<|im_end|>")
STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
STRICT_SENTENCE = re.compile(r"The answer is (\-?[0-9\.\,]+)")


class WorkedQuestion(NamedTuple):
    """A question with its worked answer, calculator annotations removed."""

    question: str
    answer: str


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
    return Wording(question.format, in_a_sentence, ("Q:", *ENDS), STRICT_SENTENCE)


QUESTION = harness("Question: {}\nAnswer:")
# OpenCompass, which LLaDA's authors use.
QUESTION_STEPS = harness("Question: {}\nLet's think step by step\nAnswer:")
SHORT = chain_of_thought("Q: {}\nA:")
# The task `gsm8k_cot_zeroshot`.
SHORT_STEPS = chain_of_thought("Q: {}\nA: Let's think step by step.")


def choose_anew(
    pool: list[WorkedQuestion], count: int, num_questions: int
) -> list[list[WorkedQuestion]]:
    """Draws demonstrations for each question in turn, one spare in case it draws the question."""
    rng = random.Random(FEWSHOT_SEED)
    drawn = [rng.sample(pool, count) for _ in range(num_questions)]
    return [[*rows, next(row for row in pool if row not in rows)] for rows in drawn]


def choose_first(
    pool: list[WorkedQuestion], count: int, num_questions: int
) -> list[list[WorkedQuestion]]:
    """Takes the first rows for every question, one spare in case the question is among them."""
    return [pool[: count + 1] for _ in range(num_questions)]


def write_plain(wording: Wording, question: str, demonstrations: list[WorkedQuestion]) -> str:
    """Writes demonstrations and question as one text."""
    shown = [f"{wording.ask(row.question)} {wording.tell(row.answer)}" for row in demonstrations]
    return "\n\n".join([*shown, wording.ask(question)])


def write_one_turn(
    wording: Wording, question: str, demonstrations: list[WorkedQuestion]
) -> list[Turn]:
    """Writes the plain text as one user turn."""
    return conversation([], write_plain(wording, question, demonstrations))


def write_turns(
    wording: Wording, question: str, demonstrations: list[WorkedQuestion]
) -> list[Turn]:
    """Writes each demonstration as a user turn and an assistant turn, then the question."""
    shown = [(wording.ask(row.question), wording.tell(row.answer)) for row in demonstrations]
    return conversation(shown, wording.ask(question))


class Protocol(NamedTuple):
    """One published setting, without model, sampler and temperature.

    `choose` lists at least `num_fewshot` demonstrations for each of so many questions, `write` puts
    a question and its demonstrations into a prompt. Lengths are in tokens; a setting without blocks
    has blocks as long as the answer.
    """

    num_fewshot: int
    choose: Callable[[list[WorkedQuestion], int, int], list[list[WorkedQuestion]]]
    write: Callable[[Wording, str, list[WorkedQuestion]], str | list[Turn]]
    wording: Wording
    gen_length: int
    block_length: int


_FUNCTIONS: Mapping[str, Mapping[str, Any]] = {
    "choose": {"anew": choose_anew, "first": choose_first},
    "write": {"plain": write_plain, "one_turn": write_one_turn, "turns": write_turns},
    "wording": {
        "question": QUESTION, "question_steps": QUESTION_STEPS, "short": SHORT,
        "short_steps": SHORT_STEPS,
    },
}  # fmt: skip
PROTOCOLS: Mapping[str, Protocol] = {
    name: Protocol(**one | {part: known[one[part]] for part, known in _FUNCTIONS.items()})
    for name, one in read_protocols("gsm8k").items()
}

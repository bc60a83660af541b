"""The teacher's answers, each batch of which is kept in a file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dllm_decode.training.teacher import Demonstration
from eval.runs.files import write_json
from eval.tasks.tokenizer import Tokenizer
from eval.training.held_out import score_of
from eval.training.questions import Questions
from eval.training.run_folder import read_json


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """A `Demonstration`, and what the task says of it.

    Attributes:
        prompt: Token ids.
        answer: Token ids.
        ranks: Of each token of the answer in the order of commits.
        score: The task's first, 1 for a right answer.
    """

    prompt: list[int]
    answer: list[int]
    ranks: list[int]
    score: float


class _Answers(msgspec.Struct, forbid_unknown_fields=True):
    answers: list[Answer]


def file_of(folder: Path, start: int) -> Path:
    """Returns the file of a batch, given the number of its first prompt."""
    return folder / f"{start:06}.json"


def write_batch(
    file: Path, found: Sequence[Demonstration], asked: Questions, start: int, *,
    tokenizer: Tokenizer, eos_ids: Sequence[int],
) -> None:  # fmt: skip
    """Scores the answers to a batch of prompts, of which the first has the number `start`.

    Raises:
        ValueError: If a score is undefined.
    """
    records = []
    for number, one in enumerate(found, start):
        ids = [token for token in one.answer if token not in eos_ids]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        records.append(one._asdict() | {"score": score_of(asked, number, text)})
    write_json(file, {"answers": records})


def read_answers(
    folder: Path, prompts: Sequence[Sequence[int]], batch_size: int, *, keep_wrong: bool
) -> tuple[list[Demonstration], int]:
    """Reads all batches of a folder; returns what is learned, and how many are right.

    Raises:
        ValueError: If a file is damaged, or holds answers to other prompts, or nothing is left.
    """
    answers: list[Answer] = []
    for start in range(0, len(prompts), batch_size):
        answers += read_batch(file_of(folder, start), prompts[start : start + batch_size])
    right = [one for one in answers if one.score == 1.0]
    kept = answers if keep_wrong else right
    if not kept:
        raise ValueError(
            f"Answers to learn from must be right, got none of {len(answers)}. Choose prompts that "
            "the model can answer, or pass --keep-wrong."
        )
    learned = [Demonstration(tuple(a.prompt), tuple(a.answer), tuple(a.ranks)) for a in kept]
    return learned, len(right)


def read_batch(file: Path, prompts: Sequence[Sequence[int]]) -> list[Answer]:
    """Reads the answers to a batch of prompts.

    Raises:
        ValueError: If the file is damaged, or holds answers to other prompts.
    """
    found = read_json(file, _Answers).answers
    belongs = [one.prompt for one in found] == [list(prompt) for prompt in prompts]
    if not belongs or any(len(one.answer) != len(one.ranks) for one in found):
        raise ValueError(
            f"{file} must hold answers to the {len(prompts)} prompts of its batch, with a rank for "
            "each token, got others; remove the file, and the same command makes it anew."
        )
    return found

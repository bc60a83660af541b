"""The teacher's answers, with one file for each batch."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from dllm_decode.core.recorders import Trace
from dllm_decode.settings.files import read_object, write_json
from dllm_decode.settings.ranks import ProcessRank
from dllm_decode.text.progress_bar import ProgressBar
from dllm_decode.training.teacher import Demonstration
from eval.runs.scoring import decode_and_score
from eval.runs.settings import Run
from eval.tasks import Example
from eval.training.held_out import defined_score
from eval.training.questions import Questions


class _Answers(msgspec.Struct, forbid_unknown_fields=True):
    answers: list[Demonstration]


def answer_all(
    run: Run, questions: Questions, folder: Path, process: ProcessRank, console: Console
) -> None:
    """Writes the answers to those batches of this process that have no file yet."""
    examples, prompts = questions.examples, questions.encoded(run.tokenizer)
    size = run.batch_size
    starts = range(0, len(examples), size)[process.rank :: process.world_size]
    with ProgressBar(console, "the teacher answers", len(starts)) as bar:
        for start in starts:
            file, batch = _file_of(folder, start), slice(start, start + size)
            if not file.exists():
                answers = ask(run, examples[batch], prompts[batch])
                write_json(file, {"answers": msgspec.to_builtins(answers)})
            bar.advance(1)


def ask(
    run: Run, examples: Sequence[Example], prompts: Sequence[Sequence[int]]
) -> list[Demonstration]:
    """Decodes and scores one batch; `prompts` are the token ids of the examples' prompts."""
    trace, answers = Trace(), []
    records = decode_and_score(run, examples, run.config, [trace])
    for row, (example, record) in enumerate(zip(examples, records, strict=True)):
        steps = trace.steps[row][: record["length"]]
        # Tokens that were filled in without a commit come last.
        last = steps.masked_fill(steps < 0, torch.iinfo(steps.dtype).max)
        ranks = last.argsort(stable=True).argsort().tolist()
        tokens = record["tokens"][: record["length"]]
        score = defined_score(run, example, record)
        answers.append(Demonstration(tuple(prompts[row]), tuple(tokens), tuple(ranks), score))
    return answers


def read_answers(
    folder: Path, num_prompts: int, batch_size: int, *, keep_wrong: bool
) -> tuple[list[Demonstration], int]:
    """Reads all batches of a folder; returns the answers to learn from, and how many are right.

    Raises ValueError if a file is damaged, or nothing is left.
    """
    answers: list[Demonstration] = []
    for start in range(0, num_prompts, batch_size):
        answers += read_object(_file_of(folder, start), _Answers).answers
    right = [answered for answered in answers if answered.score == 1.0]
    learned = answers if keep_wrong else right
    if not learned:
        raise ValueError(
            f"Answers to learn from must be right, got none of {len(answers)}. Choose prompts that "
            "the model can answer, or pass --keep-wrong."
        )
    return learned, len(right)


def _file_of(folder: Path, start: int) -> Path:
    return folder / f"{start:06}.json"

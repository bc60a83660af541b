"""The command `distil`: dParallel and d3LLM for any model and task, on one or several devices."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from rich.console import Console
from torch.optim import AdamW, Optimizer

from dllm_decode import CachePolicy, DecodeConfig
from dllm_decode.loop import new_decoder
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family
from dllm_decode.models.loading.load import find_model
from dllm_decode.models.loading.weights import check_weights, weight_files
from dllm_decode.training import Budget, Minutes, Objective, ProgressBar, Samples, make_optimisers
from dllm_decode.training.certainty import CertaintyForcing, CertaintyLoss, require_weights
from dllm_decode.training.distillation import DistilSettings, distil
from dllm_decode.training.finite import NotFiniteError
from dllm_decode.training.lora import LoRA, require_lora
from dllm_decode.training.saving import read_family, save_like
from dllm_decode.training.teacher import Demonstration, demonstrate, ranks_of
from dllm_decode.training.trajectories import Curriculum, TrajectoryForcing, TrajectoryLoss
from eval.runs.command import DTYPES, code_for
from eval.runs.files import write_json
from eval.runs.models import open_address, parse_model
from eval.runs.names import parse_cache, parse_sampler
from eval.runs.options import given_of
from eval.runs.provenance import machine_of
from eval.runs.settings import Place
from eval.runs.sweep import decoding_of
from eval.tasks.tokenizer import Tokenizer
from eval.training.arguments import LENGTHS
from eval.training.bars import bar
from eval.training.curve import draw_curve, require_matplotlib
from eval.training.held_out import Measured, compared, measure, read_measured, score_of, table_of
from eval.training.questions import Questions, read_questions
from eval.training.run_folder import (
    ANEW,
    claim,
    claim_training,
    read_json,
    require_fields,
    writing,
)
from samplers import FixedSchedule, Sampler

MOST = 1e9
"""Learning rates, epochs and minutes are at most this."""

# They change where and how fast a run goes, not what comes out.
_FREE = ("name", "output", "threads", "device", "code_runner", "allow_code")
# They decide the teacher's answers, by themselves or within its questions and its decoding.
_OF_ANSWERS = (
    "model", "revision", "dtype", "task", "prompts", "batch_size", "teacher_sampler",
    "gen_length", "block_length", "cache",
)  # fmt: skip
_ANSWER = {"prompt": list[int], "answer": list[int], "ranks": list[int], "score": float}


@dataclass(frozen=True)
class Student:
    """The model that is trained, and what it came from.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        source: Folder of its checkpoint.
        family: Of the checkpoint.
        config: How it is decoded.
    """

    model: MaskedTransformer
    tokenizer: Tokenizer
    source: Path
    family: Family
    config: DecodeConfig


def run(options: argparse.Namespace) -> int:
    """Lets the model answer, trains it on its answers, and writes and judges what became of it.

    Raises:
        ValueError: If anything is wrong; as far as it can be known, before the first forward.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    check(options)
    sampler, cache = parse_sampler(options.sampler), parse_cache(options.cache)
    place = Place.of_launch()
    asked, judged = read_questions(
        options.task, options.held_out, prompts=options.prompts, code=code_for(options)
    )
    asked.task.require_scorable()
    asked.selection.require_scores(asked.examples)
    student = load_student(options, asked, place)
    for rule, questions in ((sampler, judged), (teacher_of(options, student), asked)):
        decoder = new_decoder(student.model, rule, cache=cache, config=student.config)
        questions.require_decodable(decoder, student.tokenizer)
    objective_of(student, (), options)
    if options.lora_rank:
        require_lora(student.model, rank=options.lora_rank, alpha=alpha_of(options))
    accelerator = accelerator_of(options, student.model)
    if accelerator.is_main_process:
        asked.warn(student.tokenizer)
    # The first process writes all but the teacher's answers, and waits for the others.
    alone = writing(Path(options.output)) if accelerator.is_main_process else nullcontext()
    try:
        with alone:
            learn(student, (asked, judged), sampler, cache, accelerator, options=options)
    except NotFiniteError as error:
        raise ValueError(str(error)) from None
    return 0


def learn(
    student: Student,
    questions: tuple[Questions, Questions],
    sampler: Sampler,
    cache: CachePolicy,
    accelerator: Accelerator,
    *,
    options: argparse.Namespace,
) -> None:
    """Does what the options say, all of which were checked.

    Args:
        student: The model.
        questions: Those that the teacher answers, and those that the result is judged on.
        sampler: How the latter are decoded.
        cache: Of every decode.
        accelerator: Where the run goes.
        options: Of the command.
    """
    asked, judged = questions
    console = Console(quiet=not accelerator.is_main_process)
    folder = Path(options.output)
    if accelerator.is_main_process:
        claim(folder, settings_of_answers(options, asked, student))
    accelerator.wait_for_everyone()
    demonstrations = answers_of(student, asked, options, folder, accelerator, console)
    if accelerator.is_main_process:
        claim_training(folder, settings_of_training(options, judged))
    accelerator.wait_for_everyone()

    def judge(file: Path) -> Measured:
        measured = measure(
            student.model, student.tokenizer, judged, sampler, student.config,
            batch_size=options.batch_size, cache=cache,
            place=Place(accelerator.process_index, accelerator.num_processes),
            gather=gather_object,
        )  # fmt: skip
        if accelerator.is_main_process:
            measured.save(file)
        accelerator.wait_for_everyone()
        return measured

    before_file, after_file = folder / "before.json", folder / "after.json"
    before = read_measured(before_file, judged) if before_file.exists() else judge(before_file)
    console.print(_said("before", before), highlight=False)
    history = train(
        student, demonstrations, options, folder, accelerator, console,
        judge=lambda: judge(after_file),
    )  # fmt: skip
    if accelerator.is_main_process:
        points = [{"samples": 0.0} | _point(before), *history]
        after = read_measured(after_file, judged)
        report(student, judged, points, (before, after), options, console)
    accelerator.wait_for_everyone()


def check(options: argparse.Namespace) -> None:
    """Says what is wrong with the training before anything is decoded.

    Raises:
        ValueError: If an option is out of range, or two do not go together.
    """
    for name in ("learning_rate", "muon", "epochs", "minutes"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {value}.")
        if value is not None and value > MOST:
            raise ValueError(f"--{name.replace('_', '-')} must be at most {MOST:g}, got {value}.")
    require_weights(options.temperature, options.entropy_weight)
    Curriculum(greatest_share=options.greatest_share)
    if options.muon is not None and options.lora_rank:
        raise ValueError("--muon must be left out beside --lora-rank: it is for whole matrices.")
    if options.lora_rank < 0:
        raise ValueError(f"--lora-rank must be at least 0, got {options.lora_rank}.")
    if options.lora_alpha and not options.lora_rank:
        raise ValueError(
            "--lora-alpha must be left out without --lora-rank: it is the scale of its additions."
        )
    require_matplotlib()


def alpha_of(options: argparse.Namespace) -> int:
    """Returns the scale of LoRA's additions: their rank, unless it is given."""
    alpha: int = options.lora_alpha or options.lora_rank
    return alpha


def teacher_of(options: argparse.Namespace, student: Student) -> Sampler:
    """Returns how the teacher answers: one token a step, unless another sampler is named."""
    assert student.config.block_length is not None
    given = options.teacher_sampler
    return parse_sampler(given) if given else FixedSchedule(student.config.block_length)


def accelerator_of(options: argparse.Namespace, model: MaskedTransformer) -> Accelerator:
    """Returns where the run goes: this process' device among those of the launch."""
    # Experts that no token went to have no gradient.
    has_unused = model.transformer.config.moe is not None
    handler = DistributedDataParallelKwargs(find_unused_parameters=has_unused)
    return Accelerator(
        cpu=options.device == "cpu", mixed_precision=options.precision, kwargs_handlers=[handler]
    )


def load_student(options: argparse.Namespace, asked: Questions, place: Place) -> Student:
    """Loads the model in the precision in which it is trained.

    Raises:
        OSError: If it is not there.
        ValueError: If it is damaged, or has no tokenizer, or cannot be decoded as asked.
    """
    dtype = DTYPES[options.dtype] if options.dtype or options.lora_rank else torch.float32
    address = parse_model(options.model)
    if address.adapter or address.quantize:
        raise ValueError(
            "distil trains the weights of a checkpoint as they are stored: adapter and quantize "
            f"must be left out, got {options.model!r}."
        )
    source = find_model(address.source, options.revision or None)
    model, tokenizer = open_address(
        options.model,
        device=f"cuda:{place.local_rank}" if options.device == "cuda" else "cpu",
        dtype=dtype,
        revision=options.revision or None,
    )
    if tokenizer is None:
        raise ValueError(f"Text needs a tokenizer, got none in {options.model}; add its files.")
    config = decoding_of(asked.selection, given_of(options, LENGTHS))
    length = config.resolved_block_length(model.causal_block_length, model=model.name)
    return Student(
        model,
        # Its own types are wider than what is used here.
        cast(Tokenizer, tokenizer),
        source,
        read_family(source, address.family),
        config.updated(block_length=length),
    )


def settings_of_answers(
    options: argparse.Namespace, asked: Questions, student: Student
) -> dict[str, Any]:
    """Returns what decides the answers of the teacher."""
    return {
        "model": options.model,
        "revision": options.revision,
        "dtype": str(student.model.dtype).removeprefix("torch."),
        "task": asked.settings(),
        **asdict(student.config),
        "cache": options.cache,
        "batch_size": options.batch_size,
        "teacher_sampler": repr(teacher_of(options, student)),
    }


def settings_of_training(options: argparse.Namespace, judged: Questions) -> dict[str, Any]:
    """Returns what decides the result beside the answers."""
    apart = (*_FREE, *_OF_ANSWERS)
    given = {name: value for name, value in vars(options).items() if name not in apart}
    return given | {"held_out": judged.settings()}


def answers_of(
    student: Student,
    asked: Questions,
    options: argparse.Namespace,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
) -> list[Demonstration]:
    """Lets the teacher answer; each batch is kept in a file, so that a killed run goes on.

    Raises:
        ValueError: If there is nothing to learn from.
    """
    prompts, size = asked.encoded(student.tokenizer), options.batch_size
    starts = range(0, len(prompts), size)
    mine = starts[accelerator.process_index :: accelerator.num_processes]
    sampler, cache = teacher_of(options, student), parse_cache(options.cache)
    with bar(console, "the teacher answers", len(mine)) as advance:
        for start in mine:
            file = _file_of(folder, start)
            if not file.exists():
                found, _ = demonstrate(
                    student.model, prompts[start : start + size], student.config,
                    sampler=sampler, cache=cache,
                )  # fmt: skip
                write_json(file, {"answers": _scored(student, asked, start, found)})
            advance(1)
    accelerator.wait_for_everyone()
    records = [
        one
        for start in starts
        for one in read_answers(_file_of(folder, start), prompts[start : start + size])
    ]
    right = sum(one["score"] == 1.0 for one in records)
    console.print(f"the teacher is right on {right} of {len(records)} prompts", highlight=False)
    kept = [
        Demonstration(*(tuple(one[name]) for name in Demonstration._fields))
        for one in records
        if one["score"] == 1.0 or options.keep_wrong
    ]
    if not kept:
        raise ValueError(
            f"Answers to learn from must be right, got none of {len(records)} from "
            f"{options.model}. Choose prompts that it can answer, or pass --keep-wrong."
        )
    return kept


def read_answers(file: Path, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Reads the teacher's answers to a batch of prompts.

    Raises:
        ValueError: If the file is damaged, or holds answers to other prompts.
    """
    found: list[dict[str, Any]] = read_json(file, {"answers": list[Any]}, remedy=ANEW)["answers"]
    for one in found:
        require_fields(one, _ANSWER, file)
    belongs = [one["prompt"] for one in found] == [list(prompt) for prompt in prompts]
    if not belongs or any(len(one["answer"]) != len(one["ranks"]) for one in found):
        raise ValueError(
            f"{file} must hold answers to the {len(prompts)} prompts of its batch, with a rank for "
            f"each token, got others; {ANEW}."
        )
    return found


def train(
    student: Student,
    demonstrations: Sequence[Demonstration],
    options: argparse.Namespace,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
    *,
    judge: Callable[[], Measured],
) -> list[dict[str, float]]:
    """Distils and writes the weights; returns what was measured on the way."""
    lora = None
    if options.lora_rank:
        rank, alpha = options.lora_rank, alpha_of(options)
        lora = LoRA(student.model, student.family, rank=rank, alpha=alpha)
    else:
        student.model.requires_grad_(True)
    objective, advance = objective_of(student, demonstrations, options)
    num_answers = len(demonstrations)
    with ProgressBar(console, options.method) as shown:

        def evaluate() -> Mapping[str, float]:
            measured = judge()
            shown.say(_said("held-out", measured))
            return _point(measured)

        progress = distil(
            objective,
            optimisers_of(student.model, options),
            demonstrations,
            DistilSettings(
                budget=budget_of(options, num_answers),
                folder=folder / "checkpoints",
                gen_length=student.config.gen_length,
                num_rows=options.rows,
                num_forwards=options.forwards,
                evaluate_every=options.evaluate_every,
                seed=options.seed,
            ),
            accelerator=accelerator,
            evaluate=evaluate,
            observe=shown,
            advance=advance,
        )
    if accelerator.is_main_process:
        if lora is not None:
            lora.save(folder / "adapter", base=parse_model(options.model).source)
        else:
            files, family = weight_files(student.source), student.family
            stored = check_weights(student.model.transformer, family, files)
            save_like(student.model, student.source, folder / "model", family=family, dtype=stored)
    return progress.history


def objective_of(
    student: Student, demonstrations: Sequence[Demonstration], options: argparse.Namespace
) -> tuple[Objective, Callable[[float], None]]:
    """Returns the loss of the method, and what tells it how far the run is."""
    weights = (options.temperature, options.entropy_weight)
    assert student.config.block_length is not None
    if options.method == "dparallel":
        loss = CertaintyLoss(*weights)
        forcing = CertaintyForcing(student.model, student.config.block_length, loss=loss)
        return forcing, lambda _: None
    ranks = ranks_of(demonstrations, student.model.eos_ids)
    # The authors' curriculum, 16 to 32, in proportion to the block length.
    quarters = (2, 2, 3, 3, 4, 4)
    lengths = tuple(max(1, student.config.block_length * part // 4) for part in quarters)
    curriculum = Curriculum(options.greatest_share, lengths)
    following = TrajectoryForcing(
        student.model, ranks, curriculum=curriculum, loss=TrajectoryLoss(*weights)
    )
    return following, following.advance


def optimisers_of(model: MaskedTransformer, options: argparse.Namespace) -> Sequence[Optimizer]:
    """Returns AdamW for all that is trained, or Muon for the matrices of the layers."""
    if options.muon is None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return [AdamW(weights, lr=options.learning_rate, weight_decay=0.0)]
    return make_optimisers(model, matrix_lr=options.muon, other_lr=options.learning_rate)


def budget_of(options: argparse.Namespace, num_answers: int) -> Budget:
    """Returns how long the run lasts."""
    if options.minutes is not None:
        return Minutes(options.minutes)
    return Samples(max(1, math.ceil(options.epochs * num_answers)))


def report(
    student: Student,
    judged: Questions,
    points: Sequence[Mapping[str, float]],
    measured: tuple[Measured, Measured],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Writes training.json and curve.png, and shows what the training was worth."""
    folder, (before, after) = Path(options.output), measured
    written = folder / ("adapter" if options.lora_rank else "model")
    found = {
        "command": shlex.join(["dllm-decode", "distil", *sys.argv[2:]]),
        "model": student.model.name,
        "held_out": judged.described(),
        "config": repr(student.config),
        "cache": options.cache,
        "sampler": options.sampler,
        "before": {"accuracy": before.accuracy, "forwards": before.mean_forwards},
        "after": compared(before, after),
        "history": list(points),
        "machine": machine_of(student.model.device),
    }
    write_json(folder / "training.json", found)
    if not options.lora_rank:
        write_json(written / "training.json", found)
    title = f"{student.model.name}, {options.method}, {options.sampler}, {judged.address}"
    draw_curve(points, folder / "curve.png", title=title, num_prompts=len(judged.examples))
    console.print(table_of(
        f"{len(judged.examples)} held-out prompts, {judged.address}",
        ("before", before), [("after", after)],
    ))  # fmt: skip
    console.print(
        f"wrote {written}, {folder / 'training.json'} and {folder / 'curve.png'}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _file_of(folder: Path, start: int) -> Path:
    return folder / "answers" / f"{start:06}.json"


def _scored(
    student: Student, asked: Questions, start: int, found: Sequence[Demonstration]
) -> list[dict[str, Any]]:
    records = []
    for i, one in enumerate(found):
        ids = [token for token in one.answer if token not in student.model.eos_ids]
        text = student.tokenizer.decode(ids, skip_special_tokens=True)
        score = score_of(asked, start + i, text)
        records.append(one._asdict() | {"score": score})
    return records


def _point(measured: Measured) -> dict[str, float]:
    accuracy = measured.accuracy
    return {
        "accuracy": accuracy["value"], "low": accuracy["low"], "high": accuracy["high"],
        "forwards": measured.mean_forwards,
    }  # fmt: skip


def _said(label: str, measured: Measured) -> str:
    accuracy, forwards = measured.accuracy["value"], measured.mean_forwards
    return f"{label}: accuracy {accuracy:.3f}, {forwards:.2f} forwards a prompt"

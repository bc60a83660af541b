"""The command `distil`: dParallel and d3LLM for any model and task, on one or several devices."""

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from rich.console import Console
from torch.optim import AdamW, Optimizer

from dllm_decode import DecodeConfig
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import Family
from dllm_decode.models.loading.find import Hub, find_model
from dllm_decode.models.loading.weights import check_weights, weight_files
from dllm_decode.models.masked_transformer import own_network
from dllm_decode.training import (
    Batch,
    Objective,
    Progress,
    ProgressBar,
    Settings,
    make_optimisers,
    train,
)
from dllm_decode.training.certainty import (
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
)
from dllm_decode.training.fsdp import require_launch
from dllm_decode.training.lora import LoRA, require_lora
from dllm_decode.training.saving import read_family, save_like
from dllm_decode.training.teacher import Demonstration, Lessons
from eval.files import write_json
from eval.runs.command import code_for, load
from eval.runs.options import LENGTHS, given_of
from eval.runs.plugins import parse_cache, parse_model, parse_sampler
from eval.runs.settings import Place, Run
from eval.runs.sweep import Loaded
from eval.training.curve import draw_curve, require_package
from eval.training.held_out import (
    HeldOutScores,
    compared,
    described,
    measure,
    read_measured,
    table_of,
)
from eval.training.questions import Questions, config_of, read_questions
from eval.training.run_folder import SETTINGS_FILE, TRAINING_FILE, claim, on_first, writing
from eval.training.teacher_answers import ask, file_of, read_answers, write_batch
from samplers import FixedSchedule, Sampler

# They change where and how fast a run goes, not what comes out.
_FREE = ("name", "output", "threads", "device", "code_runner", "allow_code", "log_with")
# They decide the teacher's answers, by themselves or within its questions and its decoding.
_OF_ANSWERS = (
    "model", "revision", "dtype", "task", "prompts", "batch_size", "teacher_sampler",
    "gen_length", "block_length", "cache",
)  # fmt: skip


@dataclass(frozen=True)
class Student:
    """The model that is trained, and what it came from.

    `model` is the loaded one, as a network of this package; `source` is the folder of its
    checkpoint, `config` says how it is decoded.
    """

    loaded: Loaded
    model: MaskedTransformer
    source: Path
    family: Family
    config: DecodeConfig


def load_student(options: argparse.Namespace, asked: Questions) -> Student:
    """Loads the model in the precision in which it is trained.

    Raises:
        OSError: If it is not there.
        ValueError: If it is damaged, or has no tokenizer, or cannot be decoded as asked.
    """
    address = parse_model(options.model)
    if address.adapter or address.quantize:
        raise ValueError(
            "distil trains the weights of a checkpoint as they are stored: adapter and quantize "
            f"must be left out, got {options.model!r}."
        )
    source = find_model(address.source, Hub(options.revision or None))
    dtype = options.dtype or (None if options.lora_rank else "float32")
    loaded = load(options.model, device=options.device, dtype=dtype, revision=options.revision)
    model = own_network(loaded.model)
    config = config_of(asked, loaded, given_of(options, LENGTHS))
    return Student(loaded, model, source, read_family(source, address.family), config)


def accelerator_of(options: argparse.Namespace, model: MaskedTransformer) -> Accelerator:
    """Returns where the run goes: this process' device among those of the launch."""
    # Experts that no token went to have no gradient.
    has_unused = model.transformer.config.moe is not None
    return Accelerator(
        cpu=options.device == "cpu",
        mixed_precision=options.precision,
        log_with=options.log_with or None,
        project_dir=options.output,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=has_unused)],
    )


def teacher_of(options: argparse.Namespace, student: Student) -> Sampler:
    """Returns how the teacher answers: one token a step, unless another sampler is named."""
    assert student.config.block_length is not None
    given = options.teacher_sampler
    return parse_sampler(given) if given else FixedSchedule(student.config.block_length)


def objective_of(student: Student, options: argparse.Namespace) -> Objective[Batch]:
    """Returns the loss of the method."""
    length = student.config.block_length
    assert length is not None
    loss = CertaintyLoss(options.method, options.temperature, options.entropy_weight)
    if options.method == "dparallel":
        return CertaintyForcing(student.model, length, loss=loss)
    # The authors' curriculum, 16 to 32, in proportion to the block length.
    lengths = tuple(max(1, length * quarters // 4) for quarters in (2, 2, 3, 3, 4, 4))
    curriculum = Curriculum(options.greatest_share, lengths)
    return TrajectoryForcing(student.model, curriculum=curriculum, loss=loss)


def optimisers_of(model: MaskedTransformer, options: argparse.Namespace) -> Sequence[Optimizer]:
    """Returns AdamW for all that is trained, or Muon for the matrices of the layers."""
    if options.muon is None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return [AdamW(weights, lr=options.learning_rate, weight_decay=0.0)]
    return make_optimisers(model, matrix_lr=options.muon, other_lr=options.learning_rate)


def run(options: argparse.Namespace) -> int:
    """Lets the model answer, trains it on its answers, and writes and judges what became of it.

    Raises ValueError if anything is wrong; as far as it can be known, before the first forward.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    check(options)
    sampler, cache = parse_sampler(options.sampler), parse_cache(options.cache)
    asked, judged = read_questions(
        options.task, options.held_out, prompts=options.prompts or "", code=code_for(options)
    )
    asked.selection.task.require_scorable()
    asked.selection.require_scores(asked.examples)
    student, size = load_student(options, asked), options.batch_size
    judging = judged.run(student.loaded, sampler, cache, student.config, size)
    teacher = teacher_of(options, student)
    teaching = asked.run(student.loaded, teacher, cache, student.config, size)
    objective_of(student, options)
    if options.lora_rank:
        alpha = options.lora_alpha or options.lora_rank
        require_lora(student.model, rank=options.lora_rank, alpha=alpha)
    accelerator = accelerator_of(options, student.model)
    if accelerator.is_main_process:
        asked.warn(teaching.tokenizer)
    distillation = Distillation(options, student, asked, judged, teaching, judging, accelerator)
    with ExitStack() as stack:
        # The first process writes all but the teacher's answers.
        on_first(accelerator, lambda: stack.enter_context(writing(distillation.folder)))
        distillation.run()
    return 0


def check(options: argparse.Namespace) -> None:
    """Raises ValueError if options of command and launch do not go together, or a package lacks."""
    require_launch(device=options.device, uses_muon=options.muon is not None)
    CertaintyLoss(options.method, options.temperature, options.entropy_weight)
    Curriculum(greatest_share=options.greatest_share)
    if options.muon is not None and options.lora_rank:
        raise ValueError("--muon must be left out beside --lora-rank: it is for whole matrices.")
    if options.lora_alpha and not options.lora_rank:
        raise ValueError(
            "--lora-alpha must be left out without --lora-rank: it is the scale of its additions."
        )
    require_package("matplotlib", "The curve of a training", '".[eval]" in the clone')
    for package in options.log_with:
        require_package(package, f"--log-with {package}", package)


@dataclass(frozen=True)
class Distillation:
    """A run of the command, all options of which were checked.

    The teacher answers the questions `asked` as `teaching` says; the result is judged on others, as
    `judging` says.
    """

    options: argparse.Namespace
    student: Student
    asked: Questions
    judged: Questions
    teaching: Run
    judging: Run
    accelerator: Accelerator

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.options.output)

    def run(self) -> None:
        """Goes through the parts; each goes on where it stopped."""
        console = Console(quiet=not self.accelerator.is_main_process)
        of_answers, settings = self.settings_of_answers(), self.settings_of_training()
        on_first(self.accelerator, lambda: claim(self.folder / SETTINGS_FILE, of_answers))
        demonstrations = self.demonstrations(console)
        on_first(self.accelerator, lambda: claim(self.folder / TRAINING_FILE, settings))
        self.accelerator.init_trackers("distil", {k: str(v) for k, v in settings.items()})
        file = self.folder / "before.json"
        before = read_measured(file, self.judged) if file.exists() else self.judge("before")
        console.print(before.said("before"), highlight=False)
        history = self.train(demonstrations, console)
        after = read_measured(self.folder / "after.json", self.judged)
        points = [{"samples": 0.0} | before.point, *history]
        on_first(self.accelerator, lambda: self.report(points, before, after, console))
        self.accelerator.end_training()

    def demonstrations(self, console: Console) -> list[Demonstration]:
        """Lets the teacher answer, and returns what is learned."""
        teaching, examples, size = self.teaching, self.asked.examples, self.options.batch_size
        folder, prompts = self.folder / "answers", self.asked.encoded(teaching.tokenizer)
        starts = range(0, len(prompts), size)[self._place.rank :: self._place.world_size]
        with ProgressBar(console, "the teacher answers", len(starts)) as bar:
            for start in starts:
                file, batch = file_of(folder, start), slice(start, start + size)
                if not file.exists():
                    write_batch(file, ask(teaching, examples[batch], prompts[batch]))
                bar.advance(1)
        self.accelerator.wait_for_everyone()
        keep_wrong = self.options.keep_wrong
        learned, num_right = read_answers(folder, prompts, size, keep_wrong=keep_wrong)
        said = f"the teacher is right on {num_right} of {len(prompts)} prompts"
        console.print(said, highlight=False)
        return learned

    def judge(self, name: str) -> HeldOutScores:
        """Measures the model as it is on the held-out prompts, and keeps that in a file."""
        measured = measure(
            self.judging, self.judged.examples, place=self._place, gather=gather_object
        )
        if self.accelerator.is_main_process:
            measured.save(self.folder / f"{name}.json")
        self.accelerator.wait_for_everyone()
        return measured

    def train(
        self, demonstrations: Sequence[Demonstration], console: Console
    ) -> list[dict[str, float]]:
        """Distils and writes the weights; returns what was measured on the way."""
        options, student, accelerator = self.options, self.student, self.accelerator
        lora = None
        if options.lora_rank:
            rank, alpha = options.lora_rank, options.lora_alpha or options.lora_rank
            lora = LoRA(student.model, student.family, rank=rank, alpha=alpha)
        else:
            student.model.requires_grad_(True)
        lessons = Lessons(
            demonstrations, gen_length=student.config.gen_length,
            eos_id=student.model.eos_ids[0], num_rows=options.rows,
            num_forwards=options.forwards, device=accelerator.device, seed=options.seed,
        )  # fmt: skip
        # Minutes take the place of epochs.
        by_epochs = max(1, math.ceil(options.epochs * len(demonstrations)))
        settings = Settings(
            num_samples=by_epochs if options.minutes is None else math.inf,
            minutes=options.minutes or math.inf, folder=self.folder / "checkpoints",
            evaluate_every=options.evaluate_every, seed=options.seed,
        )  # fmt: skip
        with ProgressBar(console, options.method) as shown:

            def evaluate(_: Progress) -> Mapping[str, float]:
                measured = self.judge("after")
                shown.say(measured.said("held-out"))
                return measured.point

            progress = train(
                objective_of(student, options), optimisers_of(student.model, options), lessons,
                settings, accelerator=accelerator, evaluate=evaluate, observe=shown,
                measures=("accuracy", "low", "high", "forwards"),
            )  # fmt: skip
        on_first(accelerator, lambda: self.write_weights(lora))
        return progress.history

    def write_weights(self, lora: LoRA | None) -> None:
        """Writes the model, or LoRA's additions to it."""
        student = self.student
        if lora is not None:
            base = parse_model(self.options.model).source
            lora.save(self.folder / "adapter", base=base)
            return
        family, files = student.family, weight_files(student.source)
        stored = check_weights(student.model.transformer, family, files)
        save_like(student.model, student.source, self.folder / "model", family=family, dtype=stored)

    def report(
        self,
        points: Sequence[Mapping[str, float]],
        before: HeldOutScores,
        after: HeldOutScores,
        console: Console,
    ) -> None:
        """Writes training.json and curve.png, and shows what the training was worth."""
        options, student, judged = self.options, self.student, self.judged
        record, curve = self.folder / "training.json", self.folder / "curve.png"
        written = self.folder / ("adapter" if options.lora_rank else "model")
        found = described("distil", self.judging, judged) | {
            "sampler": options.sampler,
            "before": {"accuracy": before.accuracy, "forwards": before.mean_forwards},
            "after": compared(before, after),
            "history": list(points),
        }
        write_json(record, found)
        if not options.lora_rank:
            write_json(written / "training.json", found)
        num_prompts = len(judged.examples)
        title = (
            f"{student.model.name}, {options.method}, {options.sampler}, {judged.selection.address}"
        )
        draw_curve(points, curve, title=title, num_prompts=num_prompts)
        title = f"{num_prompts} held-out prompts, {judged.selection.address}"
        console.print(table_of(title, ("before", before), [("after", after)]))
        console.print(f"wrote {written}, {record} and {curve}", highlight=False, soft_wrap=True)

    def settings_of_answers(self) -> dict[str, Any]:
        """Returns what decides the answers of the teacher."""
        options, student = self.options, self.student
        return {
            "model": options.model,
            "revision": options.revision,
            "dtype": str(student.model.dtype).removeprefix("torch."),
            "task": self.asked.settings(),
            **asdict(student.config),
            "cache": options.cache,
            "batch_size": options.batch_size,
            "teacher_sampler": repr(self.teaching.sampler),
        }

    def settings_of_training(self) -> dict[str, Any]:
        """Returns what decides the result beside the answers."""
        apart = (*_FREE, *_OF_ANSWERS)
        given = {name: value for name, value in vars(self.options).items() if name not in apart}
        return given | {"held_out": self.judged.settings()}

    @property
    def _place(self) -> Place:
        return Place(self.accelerator.process_index, self.accelerator.num_processes)

"""The command `distil`: dParallel and d3LLM for any model and task, on one or several devices."""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from rich.console import Console

from dllm_decode import CachePolicy
from dllm_decode.settings.files import write_json
from dllm_decode.settings.plugins import parse
from dllm_decode.settings.ranks import ProcessRank
from dllm_decode.text.progress_bar import ProgressBar
from dllm_decode.training import Progress, Settings, train
from dllm_decode.training.teacher import Demonstration, Lessons
from eval.runs.settings import Run
from eval.training.held_out import HeldOutScores, description_of, read_scores, score_held_out
from eval.training.questions import Questions, read_questions, settings_of
from eval.training.run_folder import claim, claim_training, run_on_first, writing
from eval.training.student import Student
from eval.training.teacher_answers import answer_all, read_answers
from samplers import FixedSchedule, Sampler
from samplers.expression import expression_of

_REFUSED = (
    "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
)  # fmt: skip
"""Variables by which `accelerate launch` tells its processes of its options."""

_NOT_OF_TRAINING = (
    # They change where and how fast a run goes, but not its result.
    "name", "output", "threads", "device",
    # They decide the teacher's answers, and are part of `settings_of_answers`.
    "model", "revision", "dtype", "task", "prompts", "batch_size", "teacher_sampler",
    "gen_length", "block_length", "cache",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Lets the model answer, trains it on its answers, and writes and judges the result.

    Raises ValueError if anything is wrong, if possible before the first forward.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    check(options)
    sampler, cache = parse(options.sampler, Sampler), parse(options.cache, CachePolicy)
    questions, judged = read_questions(
        options.task, options.held_out, prompts=options.prompts or ""
    )
    questions.selection.require_scores(questions.examples)
    student, size = Student(options, questions), options.batch_size
    judging = judged.run(student.loaded, sampler, cache, student.config, size)
    assert student.config.block_length is not None
    text = options.teacher_sampler
    teacher = parse(text, Sampler) if text else FixedSchedule(student.config.block_length)
    teaching = questions.run(student.loaded, teacher, cache, student.config, size)
    # Experts that no token went to have no gradient.
    has_unused = student.model.transformer.config.moe is not None
    accelerator = Accelerator(
        cpu=options.device == "cpu",
        mixed_precision=options.precision,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=has_unused)],
    )
    if accelerator.is_main_process:
        questions.warn(teaching.tokenizer)
    distillation = Distillation(options, accelerator, student, questions, judged, teaching, judging)
    with ExitStack() as stack:
        # The first process writes all but the teacher's answers.
        run_on_first(accelerator, lambda: stack.enter_context(writing(distillation.folder)))
        distillation.run()
    return 0


def check(options: argparse.Namespace) -> None:
    """Raises ValueError if options of command and launch do not fit."""
    for variable in _REFUSED:
        if os.environ.get(variable, "").lower() not in ("", "no", "false", "0"):
            raise ValueError(
                f"--{variable.removeprefix('ACCELERATE_').lower()} must be left out, got it from "
                "the command or from the configuration of accelerate. Each process holds all "
                "weights; --lora-rank and --precision bf16 take less memory."
            )
    if options.muon is not None and options.lora_rank:
        raise ValueError("--muon must be left out beside --lora-rank: it is for whole matrices.")


@dataclass(frozen=True)
class Distillation:
    """A run of the command, all options of which were checked.

    The teacher answers `questions` as `teaching` says; the result is judged on the questions
    `judged`, as `judging` says.
    """

    options: argparse.Namespace
    accelerator: Accelerator
    student: Student
    questions: Questions
    judged: Questions
    teaching: Run
    judging: Run

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.options.output)

    @property
    def process(self) -> ProcessRank:
        """The rank of this process and the number of processes."""
        return ProcessRank(self.accelerator.process_index, self.accelerator.num_processes)

    def run(self) -> None:
        """Runs the parts of the command; each part continues where it stopped."""
        console = Console(quiet=not self.accelerator.is_main_process)
        of_answers, settings = self.settings_of_answers(), self.settings_of_training()
        run_on_first(self.accelerator, lambda: claim(self.folder, of_answers, settings))
        demonstrations = self.demonstrations(console)
        run_on_first(self.accelerator, lambda: claim_training(self.folder, settings))
        before = self.scores(self.folder / "before.json")
        console.print(before.said("before"), highlight=False, soft_wrap=True)
        history = self.train(demonstrations, console)
        after = self.scores(self.folder / "after.json")
        console.print(after.said("after"), highlight=False, soft_wrap=True)
        run_on_first(self.accelerator, lambda: self.report(before, after, history, console))
        self.accelerator.end_training()

    def demonstrations(self, console: Console) -> list[Demonstration]:
        """Lets the teacher answer, and returns the answers to learn from."""
        folder, num_prompts = self.folder / "answers", len(self.questions.examples)
        answer_all(self.teaching, self.questions, folder, self.process, console)
        self.accelerator.wait_for_everyone()
        learned, num_right = read_answers(
            folder, num_prompts, self.teaching.batch_size, keep_wrong=self.options.keep_wrong
        )
        said = f"the teacher is right on {num_right} of {num_prompts} prompts"
        console.print(said, highlight=False)
        return learned

    def scores(self, file: Path, *, anew: bool = False) -> HeldOutScores:
        """Reads the scores of the held-out prompts, or measures the current model.

        The scores are measured if they are wanted anew, or the file is not there.
        """
        if file.exists() and not anew:
            return read_scores(file, self.judged)
        scores = score_held_out(
            self.judging, self.judged.examples, process=self.process, gather=gather_object
        )
        if self.accelerator.is_main_process:
            scores.save(file)
        self.accelerator.wait_for_everyone()
        return scores

    def train(
        self, demonstrations: Sequence[Demonstration], console: Console
    ) -> list[dict[str, float]]:
        """Distils and writes the weights; returns the measurements made on the way."""
        options, student, accelerator = self.options, self.student, self.accelerator
        lessons = Lessons(
            demonstrations, gen_length=student.config.gen_length,
            eos_id=student.model.eos_ids[0], num_rows=options.rows,
            num_forwards=options.forwards, device=accelerator.device, seed=options.seed,
        )  # fmt: skip
        settings = Settings(
            math.ceil(options.epochs * len(demonstrations)), self.folder / "checkpoints",
            options.evaluate_every, options.seed,
        )  # fmt: skip
        with ProgressBar(console, options.method) as bar:

            def evaluate(_: Progress) -> Mapping[str, float]:
                scores = self.scores(self.folder / "after.json", anew=True)
                bar.say(scores.said("held-out"))
                return scores.point

            progress = train(
                student.objective, student.optimisers(), lessons, settings,
                accelerator=accelerator, evaluate=evaluate, observe=bar.update,
            )  # fmt: skip
        run_on_first(accelerator, lambda: student.write(self.folder))
        return progress.history

    def report(
        self,
        before: HeldOutScores,
        after: HeldOutScores,
        history: Sequence[Mapping[str, float]],
        console: Console,
    ) -> None:
        """Writes training.json."""
        record, written = self.folder / "training.json", self.folder / self.student.written
        content = description_of("distil", self.judging, self.judged) | {
            "sampler": self.options.sampler,
            "before": before.point,
            "after": after.point,
            "history": [{"samples": 0.0} | before.point, *history],
        }
        write_json(record, content)
        if not self.options.lora_rank:
            write_json(written / "training.json", content)
        console.print(f"wrote {written} and {record}", highlight=False, soft_wrap=True)

    def settings_of_answers(self) -> dict[str, Any]:
        """Returns the settings that decide the answers of the teacher."""
        settings = settings_of(self.options, self.teaching, self.questions)
        return settings | {"teacher_sampler": expression_of(self.teaching.sampler)}

    def settings_of_training(self) -> dict[str, Any]:
        """Returns the other settings that decide the result."""
        options = vars(self.options).items()
        settings = {name: value for name, value in options if name not in _NOT_OF_TRAINING}
        return settings | {"held_out": self.judged.settings()}

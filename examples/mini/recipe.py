"""The training run that the recipes of the embedded models share: its options, loop and record."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dllm_decode.training import (
    Budget,
    Kind,
    Objective,
    Progress,
    ProgressBar,
    Rows,
    Settings,
    make_optimisers,
    train,
)

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""Answers prompts with at most so many tokens: ids in, ids without EOS out."""


@dataclass(frozen=True)
class Recipe:
    """How one model is trained and measured.

    Attributes:
        name: Of the model.
        options: The parsed command line.
        budget: Length of the run.
        export: Writes the model to a folder and measures the files.
        world: What the examples are drawn from, for the record.
    """

    name: str
    options: argparse.Namespace
    budget: Budget
    export: Callable[[Path], dict[str, float]]
    world: Any

    def run(self, objective: Objective, kinds: Sequence[Kind], rows: Rows) -> Progress:
        """Trains, and keeps `output/name` ready to ship from the first evaluation on.

        Args:
            objective: Model and loss, on its device.
            kinds: What a step is made of.
            rows: Where rows come from.
        """
        options = self.options
        folder: Path = options.output / self.name
        optimisers = make_optimisers(
            objective.model, matrix_lr=options.matrix_lr, other_lr=options.other_lr
        )
        with ProgressBar(Console(), self.name) as bar:
            bar.say(f"{sum(p.numel() for p in objective.model.parameters()):,} parameters")

            def evaluate() -> dict[str, float]:
                measured = self.export(folder)
                shown = ", ".join(f"{task} {value:.3f}" for task, value in measured.items())
                bar.say(f"measured: {shown}")
                return measured

            progress = train(
                objective,
                optimisers,
                kinds,
                rows,
                self.settings(),
                evaluate=evaluate,
                observe=bar,
                resume=options.resume,
            )
            self.write_record(folder, progress)
            minutes = progress.elapsed_s / 60
            bar.say(f"{progress.samples:,} samples, {minutes:.1f} min; wrote {folder}")
        return progress

    def settings(self) -> Settings:
        """Returns the settings of the loop."""
        options = self.options
        return Settings(
            budget=self.budget,
            folder=options.output / f"{self.name}-checkpoints",
            pause_after_s=60 * options.pause_after or float("inf"),
            evaluate_every_s=60 * options.evaluate_every,
            autocast=not options.float32,
            seed=options.seed,
        )

    def write_record(self, folder: Path, progress: Progress) -> None:
        """Writes `training.json` next to the weights: what the numbers depend on, and history."""
        record = {
            "settings": {name: plain(value) for name, value in vars(self.options).items()},
            "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
            "revision": revision(),
            "world": self.world,
            "samples": progress.samples,
            "steps": progress.step,
            "elapsed_s": round(progress.elapsed_s, 1),
            "history": progress.history,
        }
        text = json.dumps(record, indent=1) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every run."""
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs"), help="folder for everything")
    add("--device", default="cpu")
    add("--minutes", type=float, default=0.0, help="length of the whole run")
    add("--pause-after", type=float, default=0.0, help="minutes until it pauses")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--evaluate-every", type=float, default=5.0, help="in minutes")
    add("--float32", action="store_true", help="no bfloat16 arithmetic")
    add("--compile", action="store_true", help="layers with torch.compile; needs a C++ compiler")
    add("--threads", type=int, default=0, help="of torch on the CPU")
    add("--seed", type=int, default=0)
    add("--matrix-lr", type=float, default=0.02, help="peak rate of Muon")
    add("--other-lr", type=float, default=0.003, help="peak rate of AdamW")


def plain(value: object) -> object:
    """Returns what JSON can hold; the name of a path."""
    return value.name if isinstance(value, Path) else value


def revision() -> str:
    """Returns the commit this is run from, "" outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""

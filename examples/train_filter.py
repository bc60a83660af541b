"""Trains a Learn2PD filter for a model: one command, minutes on a CPU for `mini`.

    python examples/train_filter.py --model mini --output learn2pd.safetensors

Prompts are drawn from the training split of word problems. The filter is then judged on
held-out prompts beside the plain confidence threshold, and written with the model's name and block
length; use it as `Learn2PD("learn2pd.safetensors")`.
"""

from dllm_decode.launch import run_main  # before torch is loaded

# isort: split
import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dllm_decode import MaskPredictor, load_model
from dllm_decode.training.learn2pd import (
    Counted,
    FilterExamples,
    FilterSettings,
    acceptance,
    collect_examples,
    join,
    save_filter,
    score,
    split,
    train_filter,
)
from eval.runs.prompts import Tokenizer, encode_prompt
from eval.tasks import WordProblems

THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.96, 0.99)
BATCH_SIZE = 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    console = Console()
    try:
        train(options, console)
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="mini", help="embedded name, folder, or hub id (default: mini)")
    add("--output", type=Path, default=Path("learn2pd.safetensors"), help="where to write")
    add("--prompts", type=int, default=400, metavar="N", help="prompts to decode (default: 400)")
    add("--gen-length", type=int, default=64, metavar="TOKENS", help="default: 64")
    add("--block-length", type=int, default=32, metavar="TOKENS", help="default: 32")
    add("--hidden", type=int, nargs="+", default=[32], help="units a hidden layer (default: 32)")
    add("--steps", type=int, default=5_000, metavar="N", help="updates (default: 5000)")
    add("--counted", choices=get_args(Counted), default="all", help="positions in the loss")
    add("--threshold", type=float, default=0.96, help="shown first in the report (default: 0.96)")
    add("--seed", type=int, default=0)
    add("--device", default="cpu")
    return parser


def train(options: argparse.Namespace, console: Console) -> None:
    """Collects, trains, judges and saves."""
    model, tokenizer = load_model(options.model, device=options.device)
    if tokenizer is None:
        raise ValueError(f"Prompts need a tokenizer, got none in {options.model}.")
    prompts = draw_prompts(tokenizer, options.prompts, options.seed)
    splits = split(collect(model, prompts, options, console), options.seed)
    settings = FilterSettings(
        hidden_sizes=tuple(options.hidden),
        num_steps=options.steps,
        counted=options.counted,
        seed=options.seed,
    )
    with bar(console) as progress:
        task = progress.add_task("training", total=options.steps)

        def report(step: int, loss: float) -> None:
            progress.update(task, completed=step, description=f"training, loss {loss:.4f}")

        network = train_filter(splits.train, splits.val, settings, report=report)
    scores = score(network, splits.test)
    console.print(report_of(scores, splits.test, {options.threshold, *THRESHOLDS}))
    save_filter(
        network, options.output, model=model.name, settings=settings, threshold=options.threshold
    )
    console.print(f"wrote {options.output}")


def draw_prompts(tokenizer: Tokenizer, num_prompts: int, seed: int) -> list[list[int]]:
    """Draws word problems of the training split."""
    examples = WordProblems().examples("train", num_prompts, seed)
    return [encode_prompt(tokenizer, example, chat=True) for example in examples]


def collect(
    model: MaskPredictor, prompts: list[list[int]], options: argparse.Namespace, console: Console
) -> FilterExamples:
    """Runs the oracle over all prompts, in batches of like lengths."""
    prompts = sorted(prompts, key=len)
    parts = []
    with bar(console) as progress:
        task = progress.add_task("collecting", total=len(prompts))
        for first in range(0, len(prompts), BATCH_SIZE):
            batch = prompts[first : first + BATCH_SIZE]
            parts.append(
                collect_examples(
                    model,
                    batch,
                    gen_length=options.gen_length,
                    block_length=options.block_length,
                    first_prompt=first,
                )
            )
            progress.advance(task, len(batch))
    return join(parts)


def bar(console: Console) -> Progress:
    """Builds a progress bar."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def report_of(scores: torch.Tensor, examples: FilterExamples, thresholds: set[float]) -> Table:
    """Compares the filter with the plain confidence on held-out blocks."""
    table = Table(title=f"{len(examples)} held-out blocks, masked positions")
    for column in ("threshold", "filter: right", "found", "confidence: right", "found"):
        table.add_column(column, justify="right")
    for threshold in sorted(thresholds):
        cells = [f"{threshold:.2f}"]
        for values in (scores, examples.confidences):
            measured = acceptance(values, examples, threshold)
            cells += [f"{measured.precision:.3f}", f"{measured.recall:.3f}"]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    run_main(main)

"""Decodes word problems with a masked-diffusion model and shows what each sampler costs.

Without arguments: held-out word problems on the embedded model `mini`. The real thing:

    python examples/llada_gsm8k.py --model GSAI-ML/LLaDA-8B-Instruct --device cuda \
        --task "gsm8k?protocol=llada&limit=100" --sampler "ConfidenceThreshold(0.9)"

`dllm-decode eval run` has all other options, and keeps records.
"""

from dllm_decode.launch import run_main  # before torch is loaded

# isort: split
import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from dllm_decode import DecodeOutput, MaskPredictor, decode_many, load_model
from dllm_decode.core.options import DEFAULT_BLOCK_LENGTH
from dllm_decode.models.loading.devices import can_multiply_bfloat16
from dllm_decode.settings.plugins import parse
from dllm_decode.text.progress_bar import ProgressBar
from eval.metrics.statistics import wilson
from eval.runs.prompts import PromptTokenizer, encode_prompt
from eval.runs.task_addresses import parse_task
from eval.tasks import Example, Task
from samplers import Sampler

SHOWN_ANSWERS = 3


class Problems(NamedTuple):
    """Examples of a task, and the model that answers them."""

    model: MaskPredictor
    tokenizer: PromptTokenizer
    task: Task
    examples: Sequence[Example]


class Result(NamedTuple):
    """The result of one sampler: a score and an output per example, and seconds for all."""

    scores: list[float]
    outputs: list[DecodeOutput]
    wall_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    try:
        selection = parse_task(options.task)
        task, examples = selection.task, selection.examples()
        # At least as many steps as a block has tokens: one token a step.
        num_steps = task.block_length or DEFAULT_BLOCK_LENGTH
        default = [f"FixedSchedule({num_steps})", "ConfidenceThreshold(0.9)"]
        samplers = [parse(text, Sampler) for text in options.sampler or default]
        if options.dtype is None and options.device == "cpu" and not can_multiply_bfloat16():
            options.dtype = "float32"
        model, tokenizer = load_model(options.model, device=options.device, dtype=options.dtype)
        problems, results = Problems(model, tokenizer, task, examples), []
        for sampler in samplers:
            num_shown = 0 if results else SHOWN_ANSWERS
            results.append(
                run(problems, sampler, console, num_rows=options.num_rows, num_shown=num_shown)
            )
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    console.print(table_of(samplers, results, options))


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="mini", help="embedded name, folder, or hub id (default: mini)")
    add("--task", default="word_problems?limit=96",
        help="address, as in dllm-decode eval (default: word_problems?limit=96)")  # fmt: skip
    add("--sampler", action="append", metavar="EXPR",
        help='such as "ConfidenceThreshold(0.9)"; repeat to compare '
        "(default: one token a step, and ConfidenceThreshold(0.9))")  # fmt: skip
    add("--num-rows", type=int, default=32,
        help="rows of a forward; prompts that wait take the place of finished ones "
        "(default: 32)")  # fmt: skip
    add("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    add("--dtype", help="float32, bfloat16 ... (default: the checkpoint's; "
        "float32 on a CPU without instructions for bfloat16)")  # fmt: skip
    return parser


def run(
    problems: Problems, sampler: Sampler, console: Console, *, num_rows: int, num_shown: int
) -> Result:
    """Decodes all examples and scores them; prints the first answers as soon as they have ended."""
    model, tokenizer, task, examples = problems
    chat = task.prompts == "chat"
    prompts = [encode_prompt(tokenizer, example, chat=chat) for example in examples]
    texts: list[str] = []
    scores: list[float] = []
    outputs = []
    started = time.perf_counter()
    with ProgressBar(console, type(sampler).__name__, len(examples)) as bar:
        answers = decode_many(
            model, prompts, sampler, num_rows=num_rows,
            gen_length=task.gen_length, block_length=task.block_length,
        )  # fmt: skip
        for example, output in zip(examples, answers, strict=True):
            outputs.append(output)
            texts.append(tokenizer.decode(output.answers()[0], skip_special_tokens=True))
            scores.append(task.score(example, texts[-1])[task.primary] or 0.0)
            if len(texts) <= num_shown:
                show_answer(console, example, texts[-1], scores[-1])
            accuracy = sum(scores) / len(scores)
            bar.update(len(texts), f"{len(texts)} of {len(examples)}, accuracy {accuracy:.3f}")
    return Result(scores, outputs, time.perf_counter() - started)


def show_answer(console: Console, example: Example, text: str, score: float) -> None:
    """Prints a question with its worked answer."""
    console.print(f"[bold]Question[/bold]  {example.turns()[-1]['content']}", highlight=False)
    mark = "[green]right[/green]" if score else "[red]wrong[/red]"
    console.print(f"[bold]Answer[/bold] ({mark})  {text.strip()}\n", highlight=False)


def table_of(
    samplers: Sequence[Sampler], results: Sequence[Result], options: argparse.Namespace
) -> Table:
    """Returns a table with one row for each sampler."""
    num_examples = len(results[0].scores)
    table = Table(title=f"{options.model} on {num_examples} examples of {options.task}")
    table.add_column("sampler")
    for column in ("accuracy", "95 % interval", "forwards", "tokens per forward", "seconds"):
        table.add_column(column, justify="right")
    for sampler, (scores, outputs, wall_s) in zip(samplers, results, strict=True):
        low, high = wilson(round(sum(scores)), num_examples)
        nfe = sum(output.forwards for output in outputs)
        tokens = sum(int(output.lengths()) for output in outputs)
        accuracy, interval = f"{sum(scores) / num_examples:.3f}", f"{low:.3f} - {high:.3f}"
        forwards, per_forward = f"{nfe / num_examples:.1f}", f"{tokens / nfe:.2f}"
        table.add_row(repr(sampler), accuracy, interval, forwards, per_forward, f"{wall_s:.1f}")
    table.caption = "forwards: model calls an example takes part in, mean"
    return table


if __name__ == "__main__":
    run_main(main)

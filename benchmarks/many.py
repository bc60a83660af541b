"""Counts the calls that `decode_many` saves: python -m benchmarks.many."""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from torch import Tensor

from dllm_decode import DecodeOutput, decode, decode_many, load_model
from dllm_decode.launch import run_main
from dllm_decode.models.base import ForwardInputs
from eval.runs.names import parse_cache, parse_task
from eval.runs.prompts import encode_prompt
from samplers import parse

CACHES = ("FreeCache()", "DualCache()", "PrefixCache()", "NoCache()")
ROWS = (4, 8, 16, 32)


class World(NamedTuple):
    """An embedded model, and the lengths of the answers that it was trained on."""

    model: str
    gen_length: int
    block_length: int


WORLDS = {
    "word_problems": World("mini", 64, 32),
    "ledgers": World("mini-long", 192, 8),
}


@dataclass(frozen=True)
class Cost:
    """Answers to some prompts, and their cost.

    Attributes:
        answers: One a prompt.
        calls: Calls of the model.
        columns: Columns computed in all calls, summed over rows.
        cpu_s: Seconds of the processor for all of them, which other programs change little.
    """

    answers: list[list[int]]
    calls: int
    columns: int
    cpu_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    world = WORLDS[options.task]
    model, tokenizer = load_model(world.model)
    assert tokenizer is not None
    examples = parse_task(options.task).task.examples(num_examples=options.limit)
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    sampler = parse(options.sampler)
    lengths = {
        "gen_length": options.gen_length or world.gen_length,
        "block_length": options.block_length or world.block_length,
    }
    table = Table(title=f"{world.model}, {len(prompts)} of {options.task}, {sampler!r}")
    for column in ("cache", "rows", "how", "calls", "columns", "CPU s", "same texts"):
        table.add_column(column, justify="left" if column in ("cache", "how") else "right")
    for expression, num_rows in product(options.cache or CACHES, options.num_rows or ROWS):
        cache = parse_cache(expression)
        starts = range(0, len(prompts), num_rows)
        batches = [prompts[start : start + num_rows] for start in starts]

        def in_batches(cache=cache, batches=batches) -> Iterable[DecodeOutput]:
            return (decode(model, batch, sampler, cache=cache, **lengths) for batch in batches)

        def in_rows(cache=cache, num_rows=num_rows) -> Iterable[DecodeOutput]:
            return decode_many(model, prompts, sampler, num_rows=num_rows, cache=cache, **lengths)

        ways = {"batches one after the other": in_batches, "decode_many": in_rows}
        costs = {name: least(model, way, options.repeats) for name, way in ways.items()}
        expected = next(iter(costs.values())).answers
        for name, cost in costs.items():
            same = sum(one == other for one, other in zip(cost.answers, expected, strict=True))
            found = (str(cost.calls), f"{cost.columns:,}", f"{cost.cpu_s:.2f}", str(same))
            table.add_row(expression, str(num_rows), name, *found)
    Console(width=120).print(table)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description="Decodes held-out problems of an embedded world: in batches one after the "
        "other, and with new rows in the places of those that have ended.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--task", choices=WORLDS, default="word_problems", help="of which world")
    add("--limit", type=int, default=96, help="number of problems")
    add("--num-rows", type=int, action="append", help=f"repeatable; default: {ROWS}")
    add("--gen-length", type=int, help="tokens; default: as the world needs")
    add("--block-length", type=int, help="tokens; default: as the world needs")
    add("--sampler", metavar="EXPR", default="ConfidenceThreshold(0.9)", help="the sampler")
    add("--cache", action="append", metavar="EXPR", help=f"repeatable; default: {CACHES}")
    add("--repeats", type=int, default=1, help="the fastest of so many runs")
    return parser


def least(model: Any, way: Callable[[], Iterable[DecodeOutput]], repeats: int) -> Cost:
    """Returns the fastest of several runs."""
    return min((measured(model, way) for _ in range(repeats)), key=lambda cost: cost.cpu_s)


def measured(model: Any, way: Callable[[], Iterable[DecodeOutput]]) -> Cost:
    """Decodes and counts; a call with several groups of rows is one call."""
    found: list[int] = []
    predict, predict_groups = model.predict, model.predict_groups

    def counted(inputs: ForwardInputs) -> Tensor:
        found.append(inputs.tokens.numel())
        return predict(inputs)

    def counted_groups(groups: Sequence[ForwardInputs]) -> list[Tensor]:
        found.append(sum(inputs.tokens.numel() for inputs in groups))
        return predict_groups(groups)

    model.predict, model.predict_groups = counted, counted_groups
    started = time.process_time()
    try:
        answers = [answer for output in way() for answer in output.answers()]
    finally:
        model.predict, model.predict_groups = predict, predict_groups
    return Cost(answers, len(found), sum(found), time.process_time() - started)


if __name__ == "__main__":
    run_main(main)

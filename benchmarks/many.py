"""Counts what `decode_many` saves: python -m benchmarks.many."""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from torch import Tensor

from dllm_decode import DecodeOutput, MaskPredictor, decode, decode_many, load_model
from dllm_decode.launch import run_main
from dllm_decode.models.base import ForwardInputs
from eval.runs.names import parse_cache
from eval.runs.prompts import encode_prompt
from eval.tasks import WordProblems
from samplers import FixedSchedule, parse

CACHES = ("DualCache()", "PrefixCache()", "NoCache()")


@dataclass(frozen=True)
class Cost:
    """What some prompts cost.

    Attributes:
        answers: One a prompt.
        calls: Of the model.
        columns: Computed in all calls, summed over rows.
        cpu_s: Seconds of the processor for all of them, which other programs change little.
    """

    answers: list[list[int]]
    calls: int
    columns: int
    cpu_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    model, tokenizer = load_model("mini")
    assert tokenizer is not None
    examples = WordProblems().examples(num_examples=options.limit)
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    starts = range(0, len(prompts), options.num_rows)
    batches = [prompts[start : start + options.num_rows] for start in starts]
    sampler = parse(options.sampler) if options.sampler else FixedSchedule(options.block_length)
    table = Table(title=f"mini, {len(prompts)} word problems, {options.num_rows} rows, {sampler!r}")
    for column in ("cache", "how", "calls", "columns", "CPU s", "same texts"):
        table.add_column(column, justify="left" if column in ("cache", "how") else "right")
    for expression in options.cache or CACHES:
        cache = parse_cache(expression)
        lengths = {"gen_length": options.gen_length, "block_length": options.block_length}

        def in_batches(cache=cache, lengths=lengths) -> Iterable[DecodeOutput]:
            return (decode(model, batch, sampler, cache=cache, **lengths) for batch in batches)

        def in_rows(cache=cache, lengths=lengths) -> Iterable[DecodeOutput]:
            return decode_many(
                model, prompts, sampler, num_rows=options.num_rows, cache=cache, **lengths
            )

        ways = {"batches one after the other": in_batches, "decode_many": in_rows}
        costs = {name: least(model, way, options.repeats) for name, way in ways.items()}
        expected = next(iter(costs.values())).answers
        for name, cost in costs.items():
            same = sum(one == other for one, other in zip(cost.answers, expected, strict=True))
            found = (str(cost.calls), f"{cost.columns:,}", f"{cost.cpu_s:.2f}", str(same))
            table.add_row(expression, name, *found)
    Console(width=120).print(table)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description="Decodes held-out word problems with `mini`, one token a step: in batches one "
        "after the other, and with new rows in the places of finished ones.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--limit", type=int, default=96, help="number of problems")
    add("--num-rows", type=int, default=8, help="rows of a forward")
    add("--gen-length", type=int, default=64, help="tokens")
    add("--block-length", type=int, default=8, help="tokens")
    add("--sampler", metavar="EXPR", help="default: one token a step")
    add("--cache", action="append", metavar="EXPR", help=f"repeatable; default: {CACHES}")
    add("--repeats", type=int, default=1, help="the fastest of so many runs")
    return parser


def least(model: MaskPredictor, way: Callable[[], Iterable[DecodeOutput]], repeats: int) -> Cost:
    """Returns the fastest of several runs."""
    return min((measured(model, way) for _ in range(repeats)), key=lambda cost: cost.cpu_s)


def measured(model: MaskPredictor, way: Callable[[], Iterable[DecodeOutput]]) -> Cost:
    """Decodes and counts."""
    calls = columns = 0
    predict = model.predict

    def counted(inputs: ForwardInputs) -> Tensor:
        nonlocal calls, columns
        calls += 1
        columns += inputs.tokens.numel()
        return predict(inputs)

    model.predict = counted
    started = time.process_time()
    try:
        answers = [answer for output in way() for answer in output.answers()]
    finally:
        model.predict = predict
    return Cost(answers, calls, columns, time.process_time() - started)


if __name__ == "__main__":
    run_main(main)

"""Counts answers that rounding changes: python -m benchmarks.rounding."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dllm_decode import SelfVerify, decode_many, load_model
from dllm_decode.launch import run_main
from eval.runs.names import parse_cache, parse_task
from eval.runs.prompts import encode_prompt
from samplers import parse

WAYS: Mapping[str, Mapping[str, Any]] = {
    "8 rows": {"num_rows": 8},
    'SelfVerify(4, "sequential")': {"verifier": SelfVerify(4, "sequential")},
    "SelfVerify(4)": {"verifier": SelfVerify(4)},
    'SelfVerify(4, "tree")': {"verifier": SelfVerify(4, "tree")},
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    sampler, cache = parse(options.sampler), parse_cache(options.cache)
    examples = parse_task("word_problems").task.examples(num_examples=options.limit)
    table = Table(title=f"answers of {len(examples)} that differ from those of each prompt alone")
    for column in ("dtype", "temperature", *WAYS):
        table.add_column(column, justify="right")
    for dtype in DTYPES:
        model, tokenizer = load_model("mini", dtype=dtype)
        assert tokenizer is not None
        prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
        for temperature in options.temperature or (0.0, 4.0):
            common: dict[str, Any] = {
                "cache": cache, "gen_length": 40, "temperature": temperature, "num_rows": 1
            }  # fmt: skip
            alone = list(decode_many(model, prompts, sampler, **common))
            differing = []
            for way in WAYS.values():
                found = decode_many(model, prompts, sampler, **{**common, **way})
                pairs = zip(found, alone, strict=True)
                differing.append(sum(not torch.equal(a.tokens, b.tokens) for a, b in pairs))
            name = str(dtype).removeprefix("torch.")
            table.add_row(name, f"{temperature:g}", *map(str, differing))
    Console(width=120).print(table)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description="Decodes word problems in layouts that are equal in exact arithmetic.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--limit", type=int, default=120, help="number of problems")
    add("--sampler", metavar="EXPR", default="ConfidenceThreshold(0.9)", help="the sampler")
    add("--cache", metavar="EXPR", default="PrefixCache()", help="the cache")
    add("--temperature", type=float, action="append", help="repeatable; default: 0 and 4")
    return parser


if __name__ == "__main__":
    run_main(main)

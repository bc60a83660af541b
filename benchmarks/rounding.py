"""Counts answers that rounding changes: python -m benchmarks.rounding.

Decodes word problems in layouts that are equal in exact arithmetic, and counts the answers that
differ from those of each prompt alone.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from benchmarks.frame import Row, read_options, report
from benchmarks.worlds import open_world
from dllm_decode import SelfVerify, decode_many
from dllm_decode.cli.plugins import parse_cache
from dllm_decode.launch import run_main
from samplers import parse

ALONE: dict[str, Any] = {"gen_length": 40, "num_rows": 1}
WAYS: dict[str, dict[str, Any]] = {
    "8 rows": {"num_rows": 8},
    'SelfVerify(4, "sequential")': {"verifier": SelfVerify(4, "sequential")},
    "SelfVerify(4)": {"verifier": SelfVerify(4)},
    'SelfVerify(4, "tree")': {"verifier": SelfVerify(4, "tree")},
}
OPTIONS = {
    "limit": (120, "number of problems"),
    "sampler": ("ConfidenceThreshold(0.9)", "the sampler"),
    "cache": ("PrefixCache()", "the cache"),
    "temperature": ([0.0, 4.0], "temperatures"),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.rounding", __doc__ or "", OPTIONS, words)
    sampler, rows = parse(options.sampler), []
    for dtype, temperature in product(
        (torch.float64, torch.float32, torch.bfloat16), options.temperature
    ):
        world = open_world("word_problems", options.limit, dtype=dtype)
        given = {**ALONE, "cache": parse_cache(options.cache), "temperature": temperature}
        answers = {
            name: list(decode_many(world.model, world.prompts, sampler, **{**given, **way}))
            for name, way in {"alone": {}, **WAYS}.items()
        }
        row: Row = {"dtype": str(dtype).removeprefix("torch."), "temperature": temperature}
        for name in WAYS:
            pairs = zip(answers[name], answers["alone"], strict=True)
            row[name] = sum(not torch.equal(a.tokens, b.tokens) for a, b in pairs)
        rows.append(row)
    title = f"answers of {options.limit} that differ from those of each prompt alone"
    report(title, rows, options)


if __name__ == "__main__":
    run_main(main)

"""Counts the calls that `decode_many` saves: python -m benchmarks.many.

Decodes held-out problems of an embedded world: in batches one after the other, and with new rows
in the places of those that have ended.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from benchmarks.frame import Row, read_options, report
from benchmarks.watch import Watch
from benchmarks.worlds import open_world
from dllm_decode import DecodeOutput, decode, decode_many
from dllm_decode.cli.plugins import parse_cache
from dllm_decode.launch import run_main
from samplers import parse

LENGTHS = {"word_problems": (64, 32), "ledgers": (192, 8)}
"""By world `gen_length` and `block_length`."""
OPTIONS = {
    "task": (LENGTHS, "the world"),
    "limit": (96, "number of problems"),
    "num_rows": ([4, 8, 16, 32], "rows of a batch"),
    "sampler": ("ConfidenceThreshold(0.9)", "the sampler"),
    "cache": (["FreeCache()", "DualCache()", "PrefixCache()", "NoCache()"], "caches"),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.many", __doc__ or "", OPTIONS, words)
    world, sampler = open_world(options.task, options.limit), parse(options.sampler)
    model, prompts = world.model, world.prompts
    watch = Watch(model.device)
    watch.follow(model)
    gen_length, block_length = LENGTHS[options.task]
    rows = []
    for text, num_rows in product(options.cache, options.num_rows):
        given = {
            "cache": parse_cache(text), "gen_length": gen_length, "block_length": block_length
        }  # fmt: skip
        batches = [prompts[start : start + num_rows] for start in range(0, len(prompts), num_rows)]
        ways = {
            "batches one after the other": lambda b=batches, g=given: (
                decode(model, batch, sampler, **g) for batch in b
            ),
            "decode_many": lambda n=num_rows, g=given: decode_many(
                model, prompts, sampler, num_rows=n, **g
            ),
        }
        apart = None
        for how, way in ways.items():
            answers, row = measure(watch, way)
            apart = apart or answers
            same = sum(one == other for one, other in zip(answers, apart, strict=True))
            rows.append({"cache": text, "rows": num_rows, "how": how, **row, "same texts": same})
    report(f"{len(prompts)} of {options.task}, {sampler!r}", rows, options)


def measure(watch: Watch, way: Callable[[], Iterable[DecodeOutput]]) -> tuple[list[list[int]], Row]:
    """Decodes and counts; a call with several groups of rows is one call."""
    watch.clear()
    # Seconds of the processor: other programs change them little.
    started = time.process_time()
    answers = [answer for output in way() for answer in output.answers()]
    cpu_s = time.process_time() - started
    columns = sum(group.rows * group.computed for call in watch.forwards for group in call)
    return answers, {"calls": len(watch.forwards), "columns": columns, "CPU s": cpu_s}


if __name__ == "__main__":
    run_main(main)

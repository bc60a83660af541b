"""Counts the calls that `decode_many` saves: python -m benchmarks.many.

Decodes held-out problems of an embedded world: in batches one after the other, and with new rows
in the places of those that have ended.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from benchmarks.frame import Row, read_options, report
from benchmarks.worlds import World, open_world
from dllm_decode import DecodeOutput, decode, decode_many
from dllm_decode.launch import run_main
from eval.runs.plugins import parse_cache
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
    gen_length, block_length = LENGTHS[options.task]
    lengths = {"gen_length": gen_length, "block_length": block_length}
    rows = []
    for text, num_rows in product(options.cache, options.num_rows):
        cache = parse_cache(text)
        batches = [
            world.prompts[first : first + num_rows]
            for first in range(0, len(world.prompts), num_rows)
        ]
        apart = measure(
            world,
            lambda c=cache, b=batches: (
                decode(world.model, batch, sampler, cache=c, **lengths) for batch in b
            ),
        )
        joined = measure(
            world,
            lambda c=cache, n=num_rows: decode_many(
                world.model, world.prompts, sampler, num_rows=n, cache=c, **lengths
            ),
        )
        for how, (answers, row) in (
            ("batches one after the other", apart),
            ("decode_many", joined),
        ):
            same = sum(one == other for one, other in zip(answers, apart[0], strict=True))
            rows.append({"cache": text, "rows": num_rows, "how": how, **row, "same texts": same})
    report(f"{len(world.prompts)} of {options.task}, {sampler!r}", rows, options)


def measure(world: World, way: Callable[[], Iterable[DecodeOutput]]) -> tuple[list[list[int]], Row]:
    """Decodes and counts; a call with several groups of rows is one call."""
    columns: list[int] = []
    model = world.model
    predict, predict_groups = model.predict, model.predict_groups

    def counted(inputs):
        columns.append(inputs.tokens.numel())
        return predict(inputs)

    def counted_groups(groups):
        columns.append(sum(inputs.tokens.numel() for inputs in groups))
        return predict_groups(groups)

    model.predict, model.predict_groups = counted, counted_groups
    # Seconds of the processor: other programs change them little.
    started = time.process_time()
    try:
        answers = [answer for output in way() for answer in output.answers()]
    finally:
        model.predict, model.predict_groups = predict, predict_groups
    cpu_s = time.process_time() - started
    return answers, {"calls": len(columns), "columns": sum(columns), "CPU s": cpu_s}


if __name__ == "__main__":
    run_main(main)

"""Block schedules: accuracy, forwards, columns and seconds.

    python -m benchmarks.blocks --num-examples 200
    python -m benchmarks.blocks --oracle "lists/shuffle?n=6" --num-examples 1000

On the embedded model, prompts are decoded one by one. On the oracle, whose conditionals are exact,
only the order of the commits can err; it has no cache.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch

from benchmarks.frame import Row, read_options, report
from benchmarks.worlds import open_world
from dllm_decode import decode, generate
from dllm_decode.cli.plugins import parse_blocks, parse_cache
from dllm_decode.launch import run_main
from eval.metrics.statistics import paired_score_interval
from eval.oracle.exact import joint_of
from eval.oracle.oracle import OracleModel
from eval.runs.names import parse_task
from samplers import parse

OPTIONS = {
    "num_examples": (200, "prompts, or answers of the oracle"),
    "block_length": (16, "tokens"),
    "width": (8, "of SuffixWindow"),
    "gen_length": (64, "tokens of an answer"),
    "oracle": ("", "use the oracle, on this list task or Latin square"),
    "threshold": (0.5, "of confidence, on the oracle"),
    "entropy": (0.7, "threshold of entropy, on the oracle"),
}


def samplers_of(confidence: float, entropy: float) -> tuple[str, ...]:
    """Returns the samplers that every schedule is combined with."""
    plain = f"ConfidenceThreshold({confidence})"
    return plain, f"CreditDecoding({plain})", f"EntropyThreshold({entropy})"


def schedules(sampler: str, length: int, delimiter: int) -> list[str]:
    """Returns the schedules; the first is what the others are compared with."""
    own = ", order='entropy'" if sampler.startswith("EntropyThreshold") else ""
    return [
        f"Sequential({length})",
        f"MultiBlock({length}, 0.1, 0.95{own})",
        f"MultiBlock({length}, 0.5, 0.5{own})",
        f"MultiBlock({length}, 0.1, 0.95{own}, forces='every')",
        f"AdaptiveBlocks(({delimiter},), 0.3, {length})",
        f"SubBlocks({length}, {length // 2})",
    ]


def combinations(length: int, width: int, delimiter: int) -> Iterator[tuple[str, str, str]]:
    """Yields sampler, schedule and cache; a sampler's others are compared with its first."""
    caches = ("PrefixCache()", f"SuffixWindow(PrefixCache(), {width})", "DualCache()")
    for sampler in samplers_of(0.9, 0.4):
        found = schedules(sampler, length, delimiter)
        yield from product([sampler], found, ["NoCache()"])
        yield from product([sampler], [found[0], found[1], found[4]], caches)
        yield sampler, found[0], f"SuffixWindow(NoCache(), {width})"
        yield sampler, found[1], "SuffixWindow(NoCache(), 0, tail=0)"
        yield sampler, found[1], f"PipelineCache({length})"
        yield sampler, found[5], "SubBlockCache()"
    for sampler in ("JointThreshold(0.5, 0.0, 16)", "JointThreshold(0.7, 0.5, 16)"):
        yield sampler, f"Sequential({length})", "NoCache()"


def on_the_embedded_model(options: Any) -> list[Row]:
    """Decodes word problems with `mini`."""
    world = open_world("word_problems", options.num_examples)
    turns = [example.turns() for example in world.examples]
    stop = world.tokenizer.convert_tokens_to_ids(".")
    base: dict[str, list[float]] = {}
    rows = []
    for sampler, blocks, cache in combinations(options.block_length, options.width, stop):
        started = time.perf_counter()
        out = generate(
            world.model, world.tokenizer, turns, parse(sampler), blocks=parse_blocks(blocks),
            cache=parse_cache(cache), gen_length=options.gen_length, num_rows=1,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        right = world.scores(out.texts)
        rows.append({
            "sampler": sampler, "blocks": blocks, "cache": cache,
            **compared(right, base.setdefault(sampler, right)),
            "forwards an answer": out.decoded.nfe.double().mean().item(),
            "tokens a forward": out.tokens_per_forward,
            "columns an answer": out.decoded.query_positions.double().mean().item(),
            "seconds": seconds,
        })  # fmt: skip
    return rows


def on_the_oracle(options: Any) -> list[Row]:
    """Decodes with a model whose conditionals are known."""
    selection = parse_task(options.oracle)
    example = selection.task.examples(selection.split, 1, selection.examples_seed)[0]
    joint = joint_of(selection.task, example)
    rows = []
    for sampler in samplers_of(options.threshold, options.entropy):
        base: list[float] = []
        for blocks in schedules(sampler, options.block_length, 0):
            model = OracleModel(joint)
            prompts = [model.prompt(number) for number in range(options.num_examples)]
            out = decode(
                model, prompts, parse(sampler), blocks=parse_blocks(blocks),
                gen_length=joint.length, temperature=1.0, stop_at_eos=False,
            )  # fmt: skip
            right = [float(model.is_right(row)) for row in out.tokens.tolist()]
            base = base or right
            row: Row = {"sampler": sampler, "blocks": blocks, **compared(right, base)}
            rows.append(row | {"forwards an answer": out.nfe.double().mean().item()})
    return rows


def compared(right: list[float], base: list[float]) -> Row:
    """Returns the accuracy in per cent, and the difference to the sampler's first row in points."""
    difference = "-"
    if right is not base:
        low, high = paired_score_interval(base, right)
        difference = f"{100 * low:+.1f} to {100 * high:+.1f}"
    accuracy = 100 * sum(right) / len(right)
    return {"accuracy, %": accuracy, "difference to the sampler's first row, 95 %": difference}


def main(words: Sequence[str] | None = None) -> None:
    """Prints one of the tables."""
    options = read_options("benchmarks.blocks", __doc__ or "", OPTIONS, words)
    torch.set_num_threads(1)
    rows = (on_the_oracle if options.oracle else on_the_embedded_model)(options)
    report(f"{options.num_examples} answers of {options.oracle or 'mini'}", rows, options)


if __name__ == "__main__":
    run_main(main)

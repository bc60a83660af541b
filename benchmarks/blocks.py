"""Block schedules: accuracy, forwards, columns and seconds, as Markdown tables.

    python -m benchmarks.blocks --num-examples 200
    python -m benchmarks.blocks --oracle "lists/shuffle?n=6" --num-examples 1000

On the embedded model, prompts are decoded one by one. On the oracle, whose conditionals are exact,
only the order of the commits can err; it has no cache.
"""

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DualCache,
    MultiBlock,
    NoCache,
    PipelineCache,
    PrefixCache,
    Sequential,
    SubBlockCache,
    SubBlocks,
    SuffixWindow,
    decode,
    generate,
    load_model,
)
from eval.metrics.statistics import paired_score_interval
from eval.oracle.exact import joint_of
from eval.oracle.oracle import OracleModel
from eval.runs.names import parse_task
from eval.tasks.word_problems import WordProblems
from samplers import (
    ConfidenceThreshold,
    CreditDecoding,
    EntropyThreshold,
    JointThreshold,
    Sampler,
)
from samplers.view import Order

DIFFERENCE = "difference to the sampler's first row, points, 95 %"
SAMPLERS: tuple[Sampler, ...] = (
    ConfidenceThreshold(0.9),
    CreditDecoding(ConfidenceThreshold(0.9)),
    EntropyThreshold(0.4),
)


class Setting(NamedTuple):
    """A row of the table."""

    sampler: Sampler
    blocks: BlockSchedule
    cache: CachePolicy


def schedules(sampler: Sampler, length: int, delimiters: tuple[int, ...]) -> list[BlockSchedule]:
    """Returns the schedules; the first is what the others are compared with."""
    own: Order = "entropy" if isinstance(sampler, EntropyThreshold) else "confidence"
    return [
        Sequential(length),
        MultiBlock(length, 0.1, 0.95, order=own),
        MultiBlock(length, 0.5, 0.5, order=own),
        MultiBlock(length, 0.1, 0.95, order=own, forces="every"),
        AdaptiveBlocks(delimiters, 0.3, length),
        SubBlocks(length, length // 2),
    ]


def settings(length: int, width: int, delimiters: tuple[int, ...]) -> Iterator[Setting]:
    """Yields the rows; the first of each sampler is what the others are compared with."""
    for sampler in SAMPLERS:
        found = schedules(sampler, length, delimiters)
        yield from (Setting(sampler, blocks, NoCache()) for blocks in found)
        for blocks in (found[0], found[1], found[4]):
            yield Setting(sampler, blocks, PrefixCache())
            yield Setting(sampler, blocks, SuffixWindow(PrefixCache(), width))
            yield Setting(sampler, blocks, DualCache())
        yield Setting(sampler, found[0], SuffixWindow(NoCache(), width))
        yield Setting(sampler, found[1], SuffixWindow(NoCache(), 0, tail=0))
        yield Setting(sampler, found[1], PipelineCache(length))
        yield Setting(sampler, found[5], SubBlockCache())
    for joint in (JointThreshold(0.5, 0.0, 16), JointThreshold(0.7, 0.5, 16)):
        yield Setting(joint, Sequential(length), NoCache())


def on_the_embedded_model(args: argparse.Namespace) -> None:
    """Prints the table of `mini`."""
    model, tokenizer = load_model("mini")
    assert tokenizer is not None
    delimiters = (tokenizer.convert_tokens_to_ids("."),)
    task = WordProblems()
    examples = task.examples("test", args.num_examples)
    prompts = [example.turns() for example in examples]
    base: list[float] = []
    previous = None
    print(
        f"| sampler | blocks | cache | accuracy | {DIFFERENCE} | forwards an answer | "
        "tokens a forward | columns an answer | seconds |\n| --- |" + " --- |" * 8
    )
    for sampler, blocks, cache in settings(args.block_length, args.width, delimiters):
        started = time.perf_counter()
        out = generate(
            model, tokenizer, prompts, sampler, blocks=blocks, cache=cache,
            gen_length=args.gen_length, num_rows=1,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        right = [
            float(task.score(example, text)["answer"] or 0.0)
            for example, text in zip(examples, out.texts, strict=True)
        ]
        if sampler != previous and not isinstance(sampler, JointThreshold):
            base, previous = right, sampler
        decoded, number = out.decoded, len(right)
        print(
            f"| `{sampler}` | `{blocks}` | `{cache}` | {100 * sum(right) / number:.1f} % | "
            f"{_difference(base, right)} | {decoded.nfe.sum() / number:.2f} | "
            f"{out.tokens_per_forward:.2f} | {decoded.query_positions.sum() / number:.0f} | "
            f"{seconds:.1f} |",
            flush=True,
        )


def _difference(base: list[float], right: list[float]) -> str:
    """Writes the interval of a row's difference to its reference, which has none to itself."""
    if right is base:
        return "-"
    low, high = paired_score_interval(base, right)
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def on_the_oracle(args: argparse.Namespace) -> None:
    """Prints the table of a task whose conditionals are known."""
    selection = parse_task(args.oracle)
    example = selection.task.examples(selection.split, 1, selection.examples_seed)[0]
    joint = joint_of(selection.task, example)
    samplers: tuple[Sampler, ...] = (
        ConfidenceThreshold(args.threshold),
        CreditDecoding(ConfidenceThreshold(args.threshold)),
        EntropyThreshold(args.entropy),
    )
    print(f"{joint.length} items, {len(joint.answers)} right answers\n")
    print(
        f"| sampler | blocks | accuracy | {DIFFERENCE} | forwards an answer |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for sampler in samplers:
        base: list[float] = []
        for blocks in schedules(sampler, args.block_length, (0,)):
            model = OracleModel([joint])
            prompts = [model.prompt(number) for number in range(args.num_examples)]
            out = decode(
                model, prompts, sampler, blocks=blocks, gen_length=joint.length, temperature=1.0,
                stop_at_eos=False,
            )  # fmt: skip
            right = [float(model.is_right(row)) for row in out.tokens.tolist()]
            base = base or right
            print(
                f"| `{sampler}` | `{blocks}` | {100 * sum(right) / len(right):.1f} % | "
                f"{_difference(base, right)} | {out.nfe.double().mean():.2f} |",
                flush=True,
            )


def main() -> None:
    """Prints one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num-examples", type=int, default=200)
    add("--block-length", type=int, default=16)
    add("--width", type=int, default=8, help="of SuffixWindow")
    add("--gen-length", type=int, default=64)
    add("--oracle", metavar="TASK", help="use the oracle, on a list task or Latin square")
    add("--threshold", type=float, default=0.5, help="of confidence, on the oracle")
    add("--entropy", type=float, default=0.7, help="threshold of entropy, on the oracle")
    args = parser.parse_args()
    torch.set_num_threads(1)
    (on_the_oracle if args.oracle else on_the_embedded_model)(args)


if __name__ == "__main__":
    main()

"""Block schedules on the embedded model: accuracy, forwards and columns, as a Markdown table.

python -m benchmarks.blocks --num-examples 200
"""

import argparse
import time
from typing import NamedTuple

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DualCache,
    MultiBlock,
    NoCache,
    PrefixCache,
    Sequential,
    SuffixWindow,
    generate,
    load_model,
)
from eval.metrics.statistics import paired_score_interval
from eval.tasks.word_problems import WordProblems
from samplers import (
    ConfidenceThreshold,
    CreditDecoding,
    EntropyThreshold,
    JointThreshold,
    Sampler,
)
from samplers.view import Order

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


def settings(block_length: int, width: int) -> list[Setting]:
    """Returns the rows; the first of each sampler is what the others are compared with."""
    found = []
    for sampler in SAMPLERS:
        own: Order = "entropy" if sampler == EntropyThreshold(0.4) else "confidence"
        schedules: list[BlockSchedule] = [
            Sequential(block_length),
            MultiBlock(block_length, 0.1, 0.95, order=own),
            MultiBlock(block_length, 0.5, 0.5, order=own),
            MultiBlock(block_length, 1.0, 1.0, order=own),
        ]
        found += [Setting(sampler, blocks, NoCache()) for blocks in schedules]
        for blocks in schedules[:2]:
            found.append(Setting(sampler, blocks, PrefixCache()))
            found.append(Setting(sampler, blocks, SuffixWindow(PrefixCache(), width)))
            found.append(Setting(sampler, blocks, DualCache()))
    for joint in (JointThreshold(0.5, 0.0, 16), JointThreshold(0.7, 0.5, 16)):
        found.append(Setting(joint, Sequential(block_length), NoCache()))
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-examples", type=int, default=200)
    parser.add_argument("--block-length", type=int, default=16)
    parser.add_argument("--width", type=int, default=8, help="of SuffixWindow")
    parser.add_argument("--gen-length", type=int, default=64)
    args = parser.parse_args()
    model, tokenizer = load_model("mini")
    assert tokenizer is not None
    task = WordProblems()
    examples = task.examples("test", args.num_examples)
    prompts = [example.turns() for example in examples]
    base: list[float] = []
    previous = None
    print(
        "| sampler | blocks | cache | accuracy | against the first, 95 % | forwards an answer | "
        "tokens a forward | columns an answer | seconds |\n| --- |" + " --- |" * 8
    )
    for sampler, blocks, cache in settings(args.block_length, args.width):
        started = time.perf_counter()
        out = generate(
            model, tokenizer, prompts, sampler, blocks=blocks, cache=cache,
            gen_length=args.gen_length, num_rows=25,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        right = [
            float(task.score(example, text)["answer"] or 0.0)
            for example, text in zip(examples, out.texts, strict=True)
        ]
        if sampler != previous and not isinstance(sampler, JointThreshold):
            base, previous = right, sampler
        low, high = paired_score_interval(base, right)
        decoded, number = out.decoded, len(right)
        print(
            f"| `{sampler}` | `{blocks}` | `{cache}` | {100 * sum(right) / number:.1f} % | "
            f"{100 * low:+.1f} to {100 * high:+.1f} | {decoded.nfe.sum() / number:.1f} | "
            f"{out.tokens_per_forward:.2f} | {decoded.query_positions.sum() / number:.0f} | "
            f"{seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

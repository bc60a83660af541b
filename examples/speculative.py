"""Decodes examples of a task with verified drafts, and proves that the text is the same.

Two references and the modes that reproduce them:

- the mask predictor, one token a forward; `SelfVerify` (FreeDave) takes several steps a forward;
- the causal target alone, greedily; `ARVerify` (DiffuSpec) lets the mask predictor draft for it, in
  one forward or in a few, and at temperature 1 with drafts that are drawn: that text is a sample.

Without arguments it runs on word problems and the embedded models `mini` and `mini-ar`.
"""

from dllm_decode.launch import run_main  # before torch is loaded

# isort: split
import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from dllm_decode import (
    ARVerify,
    CausalTarget,
    DraftLength,
    DualCache,
    Gains,
    MaskPredictor,
    NGram,
    PathSearch,
    Sampled,
    SelfVerify,
    decode,
    load_model,
    load_target,
)
from dllm_decode.models.loading.find import find_model
from eval.runs.names import parse_task
from eval.runs.prompts import encode_prompt
from samplers import ConfidenceThreshold, FixedSchedule

BAR_WIDTH = 40
BLOCK_LENGTH = 32
NUM_FITTED = 2000
PLAIN, ALONE, SAMPLED = "one token a forward", "the target alone", "ARVerify, sampled"


class SpeculativeResult(NamedTuple):
    """The result of one way of decoding; counts and seconds are sums over all examples.

    Attributes:
        answers: Token ids, one answer an example.
        forwards: Forwards of the mask predictor.
        target_forwards: Forwards of the causal target.
        wall_s: Seconds.
        yields: Number of forwards (of the target, if any) by the number of tokens each gave.
        num_right: Answers that are right.
    """

    answers: list[list[int]]
    forwards: int
    target_forwards: int
    wall_s: float
    yields: Counter[int]
    num_right: int = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    disable_progress_bar()
    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    try:
        results = run(options)
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    for name in ("SelfVerify", "ARVerify"):
        show_histogram(console, name, results[name].yields)
    console.print(table_of(results, options))
    for name, result in results.items():
        reference = ALONE if name.startswith("ARVerify") else PLAIN
        if name not in (PLAIN, ALONE, SAMPLED):
            pairs = list(zip(results[reference].answers, result.answers, strict=True))
            same = sum(expected == got for expected, got in pairs)
            console.print(f"{name}: {same} of {len(pairs)} texts equal {reference}")


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="mini",
        help="mask predictor: embedded name, folder, or hub id (default: mini)")  # fmt: skip
    add("--target", default="mini-ar",
        help="causal model with the same token ids (default: mini-ar)")  # fmt: skip
    add("--task", default="word_problems?limit=32",
        help="address, as in dllm-decode eval (default: word_problems?limit=32)")  # fmt: skip
    add("--batch-size", type=int, default=1, help="rows decoded together (default: 1)")
    add("--gen-length", type=int, help="answer length in tokens (default: the task's)")
    add("--block-length", type=int, help="tokens per block (default: the model's, or 32)")
    add("--draft-steps", type=int, default=4, help="states a forward looks at (default: 4)")
    add("--draft-length", type=int, nargs=2, default=[8, 32], metavar=("MIN", "MAX"),
        help="tokens that are drafted for the target (default: 8 32)")  # fmt: skip
    add("--looks", type=int, default=4,
        help="forwards for a draft where it may have several (default: 4)")  # fmt: skip
    add("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32",
        help="of both models; in bfloat16 rounding decides more often")  # fmt: skip
    return parser


def run(options: argparse.Namespace) -> dict[str, SpeculativeResult]:
    """Decodes all examples in every way."""
    for name in ("batch_size", "gen_length", "block_length"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    place: dict[str, Any] = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    model, tokenizer = load_model(options.model, **place)
    target = load_target(options.target, tokenizer, **place)
    selection = parse_task(options.task)
    task, examples = selection.task, selection.examples()
    if options.gen_length is None:
        options.gen_length = task.gen_length
    if options.block_length is None:
        options.block_length = model.causal_block_length or BLOCK_LENGTH
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
    proxy = NGram(model.vocab_size).fit([
        encode_prompt(tokenizer, example, chat=True) + tokenizer.encode(example.target)
        for example in task.examples("train", num_examples=NUM_FITTED)
    ])  # fmt: skip
    ways = ways_of(target, proxy, options)
    results = {}
    for name, way in ways.items():
        result = measure(model, prompts, options, way) if way else alone(options, prompts)
        texts = [tokenizer.decode(answer) for answer in result.answers]
        scores = [task.score(*pair)[task.primary] for pair in zip(examples, texts, strict=True)]
        results[name] = result._replace(num_right=scores.count(1))
    return results


def ways_of(
    target: CausalTarget, proxy: NGram, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns the options of `decode` for each way; the target alone has none."""
    lengths, steps = DraftLength(*options.draft_length), options.draft_steps
    once, more = (PathSearch(proxy=proxy, num_forwards=num) for num in (1, options.looks))
    return {
        PLAIN: {"cache": DualCache()},
        "SelfVerify": {"cache": DualCache(), "verifier": SelfVerify(steps)},
        "SelfVerify, tree": {"cache": DualCache(), "verifier": SelfVerify(steps, "tree")},
        ALONE: {},
        "ARVerify": {"verifier": ARVerify(target, lengths, once)},
        f"ARVerify, {options.looks} looks": {
            "verifier": ARVerify(target, lengths, more), "sampler": ConfidenceThreshold(0.9),
        },
        SAMPLED: {"verifier": ARVerify(target, lengths, Sampled()), "temperature": 1.0},
    }  # fmt: skip


def measure(
    model: MaskPredictor,
    prompts: Sequence[list[int]],
    options: argparse.Namespace,
    way: dict[str, Any],
) -> SpeculativeResult:
    """Decodes all examples, batch by batch."""
    answers: list[list[int]] = []
    forwards, target_forwards, wall_s = 0, 0, 0.0
    yields: Counter[int] = Counter()
    lengths = {"gen_length": options.gen_length, "block_length": options.block_length}
    for start in range(0, len(prompts), options.batch_size):
        batch, gains = prompts[start : start + options.batch_size], Gains()
        decode_options = {"sampler": FixedSchedule(options.block_length), **lengths, **way}
        out = decode(model, batch, **decode_options, seed=start, observers=[gains])
        answers += out.answers()
        forwards += int(out.nfe.sum())
        target_forwards += int(out.target_nfe.sum())
        wall_s += out.wall_s
        for gain in gains.by_row().values():
            yields.update(gain.per_forward)
    return SpeculativeResult(answers, forwards, target_forwards, wall_s, yields)


def alone(options: argparse.Namespace, prompts: Sequence[list[int]]) -> SpeculativeResult:
    """Lets the target write by itself, with the generation loop of its own library."""
    model = AutoModelForCausalLM.from_pretrained(
        find_model(options.target), dtype=getattr(torch, options.dtype)
    ).eval()
    model.to(options.device)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    settings = GenerationConfig(
        max_new_tokens=options.gen_length, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )
    answers, forwards, started = [], 0, time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt], device=options.device)
        generated = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings
        )
        new_ids = generated[0, len(prompt) :].tolist()
        forwards += len(new_ids)
        answers.append(new_ids[:-1] if new_ids[-1] in ends else new_ids)
    wall_s = time.perf_counter() - started
    return SpeculativeResult(answers, 0, forwards, wall_s, Counter({1: forwards}))


def show_histogram(console: Console, name: str, yields: Counter[int]) -> None:
    """Prints how many tokens a forward gave."""
    console.print(f"\n[bold]{name}[/bold]: tokens committed per forward")
    most = max(yields.values())
    for num, count in sorted(yields.items()):
        bar = "█" * max(1, round(BAR_WIDTH * count / most))
        console.print(f"{num:4d} {bar} {count}", highlight=False)


def table_of(results: dict[str, SpeculativeResult], options: argparse.Namespace) -> Table:
    """Returns a table with one row for each way of decoding."""
    table = Table(title=f"{options.task}, {options.model} and {options.target}")
    for column in ("decoding", "forwards", "target forwards", "tokens", "seconds", "accuracy"):
        table.add_column(column, justify="left" if column == "decoding" else "right")
    num_examples = len(results[PLAIN].answers)
    for name, result in results.items():
        tokens = sum(num * count for num, count in result.yields.items())
        sums = (result.forwards, result.target_forwards, tokens, result.wall_s, result.num_right)
        table.add_row(name, *(f"{total / num_examples:.2f}" for total in sums))
    table.caption = f"means of {num_examples} examples"
    return table


if __name__ == "__main__":
    run_main(main)

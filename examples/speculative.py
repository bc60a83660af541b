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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from dllm_decode import (
    ARVerify,
    CachePolicy,
    DraftLength,
    DualCache,
    Gains,
    MaskPredictor,
    NGram,
    NoCache,
    NoVerifier,
    PathSearch,
    Sampled,
    SelfVerify,
    Verifier,
    decode,
    load_model,
    load_target,
)
from dllm_decode.models.loading.load import find_model
from eval.runs.names import parse_task
from eval.runs.prompts import encode_prompt
from eval.tasks import Example
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

BAR_WIDTH = 40
BLOCK_LENGTH = 32
NUM_FITTED = 2000


@dataclass(frozen=True)
class Mode:
    """One way of decoding with the mask predictor; see `decode`."""

    name: str
    verifier: Verifier
    cache: CachePolicy
    sampler: Sampler
    temperature: float = 0.0


@dataclass(frozen=True)
class Result:
    """What one way of decoding gave.

    Attributes:
        name: Shown in the table.
        answers: Token ids, one answer an example.
        forwards: Of the mask predictor, summed over examples.
        target_forwards: Of the causal target, summed over examples.
        wall_s: Seconds for all examples.
        yields: How often one forward (of the target, where there is one) gave so many tokens.
        num_right: Answers that are right.
    """

    name: str
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
    plain, batch, tree, alone, searched, looked, _ = results
    for result in (batch, searched):
        show_histogram(console, result)
    console.print(table_of(results, options))
    for reference, verified in ((plain, batch), (plain, tree), (alone, searched), (alone, looked)):
        pairs = zip(reference.answers, verified.answers, strict=True)
        same = sum(expected == got for expected, got in pairs)
        console.print(
            f"{verified.name}: {same} of {len(plain.answers)} texts equal {reference.name}"
        )


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


def run(options: argparse.Namespace) -> list[Result]:
    """Decodes all examples in every way."""
    dtype = getattr(torch, options.dtype)
    model, tokenizer = load_model(options.model, device=options.device, dtype=dtype)
    if tokenizer is None:
        raise ValueError(f"Text needs a tokenizer, got none in {options.model}; add its files.")
    target = load_target(options.target, tokenizer, device=options.device, dtype=dtype)
    selection = parse_task(options.task)
    task, examples = selection.task, selection.examples()
    options.gen_length = options.gen_length or task.gen_length
    options.block_length = options.block_length or model.causal_block_length or BLOCK_LENGTH
    prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]

    def tokens_of(example: Example) -> list[int]:
        return encode_prompt(tokenizer, example, chat=True) + tokenizer.encode(example.target)

    fitted = task.examples("train", num_examples=NUM_FITTED)
    proxy = NGram(model.vocab_size).fit([tokens_of(example) for example in fitted])
    lengths, one_token = DraftLength(*options.draft_length), FixedSchedule(options.block_length)
    once, more = (PathSearch(proxy=proxy, num_forwards=num) for num in (1, options.looks))
    modes = [
        Mode("one token a forward", NoVerifier(), DualCache(), one_token),
        Mode("SelfVerify", SelfVerify(options.draft_steps), DualCache(), one_token),
        Mode("SelfVerify, tree", SelfVerify(options.draft_steps, "tree"), DualCache(), one_token),
        Mode("ARVerify", ARVerify(target, lengths, once), NoCache(), one_token),
        Mode(f"ARVerify, {options.looks} looks", ARVerify(target, lengths, more), NoCache(),
             ConfidenceThreshold(0.9)),
        Mode("ARVerify, sampled", ARVerify(target, lengths, Sampled()), NoCache(), one_token, 1.0),
    ]  # fmt: skip

    def scored(result: Result) -> Result:
        texts = [tokenizer.decode(answer) for answer in result.answers]
        scores = [task.score(example, text) for example, text in zip(examples, texts, strict=True)]
        return replace(result, num_right=sum(score[task.primary] == 1 for score in scores))

    results = [measure(mode, model, prompts, options) for mode in modes]
    return [scored(result) for result in [*results[:3], alone(options, prompts), *results[3:]]]


def measure(
    mode: Mode, model: MaskPredictor, prompts: Sequence[list[int]], options: argparse.Namespace
) -> Result:
    """Decodes all examples, batch by batch."""
    answers: list[list[int]] = []
    forwards = target_forwards = 0
    wall_s = 0.0
    yields: Counter[int] = Counter()
    for start in range(0, len(prompts), options.batch_size):
        gains = Gains()
        out = decode(
            model,
            prompts[start : start + options.batch_size],
            mode.sampler,
            cache=mode.cache,
            verifier=mode.verifier,
            gen_length=options.gen_length,
            block_length=options.block_length,
            temperature=mode.temperature,
            seed=start,
            observers=[gains],
        )
        answers += out.answers()
        forwards += int(out.nfe.sum())
        target_forwards += int(out.target_nfe.sum())
        wall_s += out.wall_s
        for gain in gains.by_row().values():
            yields.update(gain.per_forward)
    return Result(mode.name, answers, forwards, target_forwards, wall_s, yields)


def alone(options: argparse.Namespace, prompts: Sequence[list[int]]) -> Result:
    """Lets the target write by itself, with the generation loop of its own library."""
    folder = find_model(options.target)
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.to(options.device)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    settings = GenerationConfig(
        max_new_tokens=options.gen_length, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )
    answers, forwards, started = [], 0, time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt], device=options.device)
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings
        )
        written = found[0, len(prompt) :].tolist()
        forwards += len(written)
        answers.append(written[:-1] if written[-1] in ends else written)
    wall_s = time.perf_counter() - started
    return Result("the target alone", answers, 0, forwards, wall_s, Counter({1: forwards}))


def show_histogram(console: Console, result: Result) -> None:
    """Prints how many tokens a forward gave."""
    console.print(f"\n[bold]{result.name}[/bold]: tokens committed per forward")
    most = max(result.yields.values())
    for num, count in sorted(result.yields.items()):
        bar = "█" * max(1, round(BAR_WIDTH * count / most))
        console.print(f"{num:4d} {bar} {count}", highlight=False)


def table_of(results: Sequence[Result], options: argparse.Namespace) -> Table:
    """Lays out one row a way of decoding."""
    num_examples = len(results[0].answers)
    table = Table(title=f"{options.task}, {options.model} and {options.target}")
    table.add_column("decoding")
    per_example: list[tuple[str, Callable[[Result], float]]] = [
        ("forwards", lambda result: result.forwards),
        ("target forwards", lambda result: result.target_forwards),
        ("tokens", lambda result: sum(num * count for num, count in result.yields.items())),
        ("seconds", lambda result: result.wall_s),
        ("accuracy", lambda result: result.num_right),
    ]
    for column, _ in per_example:
        table.add_column(column, justify="right")
    for result in results:
        cells = [f"{value(result) / num_examples:.2f}" for _, value in per_example]
        table.add_row(result.name, *cells)
    table.caption = f"means of {num_examples} examples"
    return table


if __name__ == "__main__":
    run_main(main)

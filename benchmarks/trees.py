"""Compares draft trees with drafted paths: tokens a target forward, columns and seconds.

Every way of drafting decodes the same prompts, one prompt after another with the ways in turn, so
that the load of the machine is shared fairly. Intervals are the 2.5th and 97.5th percentiles of
2,000 bootstrap samples of prompts; ratios are paired. All texts are compared with the target's own.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from dllm_decode import (
    ARVerify,
    CausalTarget,
    Drafting,
    DraftLength,
    MaskPredictor,
    NGram,
    PathSearch,
    Tree,
    decode,
    load_model,
    load_target,
    measure_column_cost,
)
from eval.runs.prompts import encode_prompt
from eval.tasks import WordProblems
from samplers import ConfidenceThreshold

NUM_FITTED = 2000
NUM_BOOTSTRAPS = 2000


@dataclass
class Way:
    """One way of drafting, and what it gave for each prompt."""

    name: str
    drafting: Drafting
    tokens: list[int] = field(default_factory=list)
    target_forwards: list[int] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    num_other_texts: int = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", default="mini", help="mask predictor (default: mini)")
    add("--target", default="mini-ar", help="causal target (default: mini-ar)")
    add("--limit", type=int, default=120, help="prompts (default: 120)")
    add("--gen-length", type=int, default=64, help="tokens of an answer (default: 64)")
    add("--looks", type=int, default=4, help="forwards of a draft that has several (default: 4)")
    add("--temperature", type=float, default=0.0, help="of the target (default: 0)")
    add("--device", default="cpu", help="cpu, cuda, ... (default: cpu)")
    add("--out", type=Path, help="JSON file for the numbers of each prompt")
    options = parser.parse_args(arguments)
    disable_progress_bar()
    model, tokenizer = load_model(options.model, device=options.device)
    assert tokenizer is not None
    target = load_target(options.target, tokenizer, device=options.device)
    task = WordProblems()
    prompts = [
        encode_prompt(tokenizer, example, chat=True)
        for example in task.examples(num_examples=options.limit)
    ]
    fitted = [
        encode_prompt(tokenizer, example, chat=True) + tokenizer.encode(example.target)
        for example in task.examples("train", num_examples=NUM_FITTED)
    ]
    cost = measure_column_cost(model, target, prompts[0], gen_length=options.gen_length)
    print(f"a column of the target costs {cost:.4f} of a round without drafts")
    ways = ways_of(NGram(model.vocab_size).fit(fitted), options.looks, cost)
    for way in ways:
        measure(way, model, target, prompts[0], options)
    ways = ways_of(NGram(model.vocab_size).fit(fitted), options.looks, cost)
    for prompt in prompts:
        text = alone(model, target, prompt, options)
        for way in ways:
            way.num_other_texts += measure(way, model, target, prompt, options) != text
    report(ways)
    if options.out:
        records = [
            {"drafting": repr(way.drafting), **vars(way) | {"drafting": None}} for way in ways
        ]
        options.out.write_text(json.dumps({"options": vars(options), "ways": records}, default=str))


def ways_of(proxy: NGram, looks: int, cost: float) -> list[Way]:
    """Lists the ways to compare: pairs at the same number of forwards of the mask predictor."""
    ways: list[tuple[str, Drafting]] = [
        ("path", PathSearch(width=1, weight=1.0)),
        ("path, n-gram", PathSearch(proxy=proxy)),
        *((f"tree {budget}", Tree(budget)) for budget in (8, 16, 32, 64, 128, 256)),
        *(
            (f"tree 32, n-gram^{weight}", Tree(32, proxy=proxy, proxy_weight=weight))
            for weight in (0.5, 1.0)
        ),
        (f"path, {looks} looks", PathSearch(width=1, weight=1.0, num_forwards=looks)),
        (f"path, n-gram, {looks} looks", PathSearch(proxy=proxy, num_forwards=looks)),
        *(
            (f"tree {budget}, {looks} looks", Tree(budget, num_forwards=looks))
            for budget in (32, 64)
        ),
        (
            f"tree 32, n-gram^0.5, {looks} looks",
            Tree(32, proxy=proxy, proxy_weight=0.5, num_forwards=looks),
        ),
        *(
            (f"tree 64, column cost {price:.2g}", Tree(64, column_cost=price))
            for price in (0.001, 0.003, 0.01)
        ),
        *(
            (f"tree {budget}, measured cost {cost:.2g}", Tree(budget, column_cost=cost))
            for budget in (64, 256)
        ),
    ]
    return [Way(name, drafting) for name, drafting in ways]


def measure(
    way: Way,
    model: MaskPredictor,
    target: CausalTarget,
    prompt: list[int],
    options: argparse.Namespace,
) -> list[int]:
    """Decodes one prompt, notes what it took, and returns the answer."""
    started = time.perf_counter()
    out = decode(
        model,
        [prompt],
        ConfidenceThreshold(0.9),
        verifier=ARVerify(target, DraftLength(8, 32), way.drafting),
        gen_length=options.gen_length,
        block_length=options.gen_length,
        temperature=options.temperature,
    )
    way.wall_s.append(time.perf_counter() - started)
    # The EOS is written by a forward too.
    way.tokens.append(min(int(out.lengths()[0]) + 1, options.gen_length))
    way.target_forwards.append(int(out.target_nfe[0]))
    way.forwards.append(int(out.nfe[0]))
    way.nodes.append(int(out.drafted[0]))
    return out.answers()[0]


def alone(
    model: MaskPredictor, target: CausalTarget, prompt: list[int], options: argparse.Namespace
) -> list[int]:
    """Lets the target write one token a forward: all it is given to read is a wrong draft."""
    lengths = DraftLength(1, 1)
    out = decode(
        model,
        [prompt],
        ConfidenceThreshold(0.9),
        verifier=ARVerify(target, lengths, PathSearch(width=1, weight=1.0)),
        gen_length=options.gen_length,
        block_length=options.gen_length,
        temperature=options.temperature,
    )
    return out.answers()[0]


def report(ways: Sequence[Way]) -> None:
    """Prints a Markdown table."""
    num = len(ways[0].tokens)
    picks = torch.randint(num, (NUM_BOOTSTRAPS, num), generator=torch.Generator().manual_seed(0))
    print(f"\n{num} prompts; in brackets 95 % intervals\n")
    print("| drafting | tokens a target forward | against its path | columns a target forward "
          "| drafter forwards a target forward | ms a prompt | other texts |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way in ways:
        reference = next(
            other for other in ways
            if isinstance(other.drafting, PathSearch)
            and other.drafting.num_forwards == way.drafting.num_forwards
        )  # fmt: skip
        own, its = (quotients(each, picks) for each in (way, reference))
        forwards = sum(way.target_forwards)
        wall_ms = 1000 * torch.tensor(way.wall_s)
        cells = [
            way.name,
            f"{float(own[0]):.2f} {interval(own)}",
            f"{float(own[0] / its[0]):.2f} {interval(own / its)}",
            f"{1 + sum(way.nodes) / forwards:.1f}",
            f"{sum(way.forwards) / forwards:.2f}",
            f"{float(wall_ms.mean()):.0f} ± {float(wall_ms.std()) / num**0.5:.0f}",
            f"{way.num_other_texts}",
        ]
        print("| " + " | ".join(cells) + " |")


def quotients(way: Way, picks: Tensor) -> Tensor:
    """Tokens a target forward: of all prompts, then of each bootstrap sample."""
    tokens, forwards = torch.tensor(way.tokens), torch.tensor(way.target_forwards)
    samples = tokens[picks].sum(-1) / forwards[picks].sum(-1)
    return torch.cat([(tokens.sum() / forwards.sum())[None], samples])


def interval(values: Tensor) -> str:
    """The 95 % interval of all but the first."""
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return f"[{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()

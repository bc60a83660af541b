"""Compares draft trees with drafted paths: tokens a target forward, columns and seconds.

Every way of drafting decodes the same prompts, one prompt after another with the ways in turn, so
that the load of the machine is shared fairly. Intervals are the 2.5th and 97.5th percentiles of
2,000 bootstrap samples of prompts; ratios are paired. All texts are compared with the target's own.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from benchmarks.frame import Row, read_options, report
from benchmarks.worlds import World, open_world
from dllm_decode import (
    ARVerify,
    CausalTarget,
    DecodeOutput,
    Drafting,
    DraftLength,
    NGram,
    PathSearch,
    Tree,
    decode,
    load_target,
    measure_column_cost,
)
from dllm_decode.launch import run_main
from eval.metrics.statistics import Estimate
from samplers import ConfidenceThreshold

NUM_FITTED = 2000
NUM_BOOTSTRAPS = 2000
PATH = PathSearch(width=1, weight=1.0)
LENGTHS = DraftLength(8, 32)
OPTIONS = {
    "model": ("mini", "mask predictor"),
    "target": ("mini-ar", "causal target"),
    "limit": (120, "prompts"),
    "gen_length": (64, "tokens of an answer"),
    "looks": (4, "forwards of a draft that has several"),
    "temperature": (0.0, "of the target"),
    "device": ("cpu", "cpu, cuda, ..."),
}


class TreeCost(NamedTuple):
    """Cost of one prompt, or of all."""

    tokens: int
    target_forwards: int
    forwards: int
    nodes: int
    other_texts: int
    seconds: float


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.trees", __doc__ or "", OPTIONS, words)
    disable_progress_bar()
    world = open_world("word_problems", options.limit, model=options.model, device=options.device)
    target = load_target(options.target, world.tokenizer, device=options.device)
    examples = world.task.examples("train", num_examples=NUM_FITTED)
    fitted = [world.encode(one) + world.tokenizer.encode(one.target) for one in examples]
    proxy = NGram(world.model.vocab_size).fit(fitted)
    cost = measure_column_cost(world.model, target, world.prompts[0], gen_length=options.gen_length)
    ways = ways_of(proxy, options.looks, cost)
    for drafting in ways.values():
        answer(world, target, world.prompts[0], drafting, options)
    costs: dict[str, list[TreeCost]] = {name: [] for name in ways}
    for prompt in world.prompts:
        # Drafts of one token, each wrong: the target writes one token a forward.
        alone = answer(world, target, prompt, PATH, options, DraftLength(1, 1)).answers()
        for name, drafting in ways.items():
            started = time.perf_counter()
            out = answer(world, target, prompt, drafting, options)
            seconds = time.perf_counter() - started
            # The EOS is written by a forward too.
            tokens = min(int(out.lengths()) + 1, options.gen_length)
            counts = (int(count) for count in (out.target_nfe, out.nfe, out.drafted))
            costs[name].append(TreeCost(tokens, *counts, out.answers() != alone, seconds))
    title = (
        f"{options.limit} prompts; in brackets 95 % intervals; "
        f"a column of the target costs {cost:.4f} of a round without drafts"
    )
    report(title, rows_of(ways, costs), options)


def ways_of(proxy: NGram, looks: int, cost: float) -> dict[str, Drafting]:
    """Lists the ways to compare: pairs at the same number of forwards of the mask predictor."""
    ways: dict[str, Drafting] = {"path": PATH, "path, n-gram": PathSearch(proxy=proxy)}
    ways |= {f"tree {budget}": Tree(budget) for budget in (8, 16, 32, 64, 128, 256)}
    for weight in (0.5, 1.0):
        ways[f"tree 32, n-gram^{weight}"] = Tree(32, proxy=proxy, proxy_weight=weight)
    several = f"{looks} looks"
    ways[f"path, {several}"] = PathSearch(width=1, weight=1.0, num_forwards=looks)
    ways[f"path, n-gram, {several}"] = PathSearch(proxy=proxy, num_forwards=looks)
    ways |= {f"tree {size}, {several}": Tree(size, num_forwards=looks) for size in (32, 64)}
    ways[f"tree 32, n-gram^0.5, {several}"] = Tree(
        32, proxy=proxy, proxy_weight=0.5, num_forwards=looks
    )
    for price in (0.001, 0.003, 0.01):
        ways[f"tree 64, column cost {price:.2g}"] = Tree(64, column_cost=price)
    for size in (64, 256):
        ways[f"tree {size}, measured cost {cost:.2g}"] = Tree(size, column_cost=cost)
    return ways


def answer(
    world: World, target: CausalTarget, prompt: list[int], drafting: Drafting, options: Any,
    lengths: DraftLength = LENGTHS,
) -> DecodeOutput:  # fmt: skip
    """Decodes one prompt."""
    return decode(
        world.model, [prompt], ConfidenceThreshold(0.9),
        verifier=ARVerify(target, lengths, drafting), gen_length=options.gen_length,
        block_length=options.gen_length, temperature=options.temperature,
    )  # fmt: skip


def rows_of(ways: dict[str, Drafting], costs: dict[str, list[TreeCost]]) -> list[Row]:
    """Makes one row a way; the path with as many forwards is its reference."""
    num = len(next(iter(costs.values())))
    picks = torch.randint(num, (NUM_BOOTSTRAPS, num), generator=torch.Generator().manual_seed(0))
    own = {name: quotients(found, picks) for name, found in costs.items()}
    paths = {
        drafting.num_forwards: own[name] for name, drafting in reversed(ways.items())
        if isinstance(drafting, PathSearch)
    }  # fmt: skip
    rows = []
    for name, drafting in ways.items():
        total = TreeCost(*map(sum, zip(*costs[name], strict=True)))
        wall_ms = 1000 * torch.tensor([one.seconds for one in costs[name]])
        rows.append({
            "drafting": name,
            "tokens a target forward": interval(own[name]),
            "against its path": interval(own[name] / paths[drafting.num_forwards]),
            "columns a target forward": 1 + total.nodes / total.target_forwards,
            "drafter forwards a target forward": total.forwards / total.target_forwards,
            "ms a prompt": f"{float(wall_ms.mean()):.0f} ± {float(wall_ms.std()) / num**0.5:.0f}",
            "other texts": total.other_texts,
        })  # fmt: skip
    return rows


def quotients(costs: Sequence[TreeCost], picks: Tensor) -> Tensor:
    """Returns tokens a target forward: of all prompts, then of each bootstrap sample."""
    tokens, forwards = torch.tensor([(one.tokens, one.target_forwards) for one in costs]).T
    samples = tokens[picks].sum(-1) / forwards[picks].sum(-1)
    return torch.cat([(tokens.sum() / forwards.sum())[None], samples])


def interval(values: Tensor) -> Estimate:
    """Returns the first value with the 95 % interval of the others."""
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return Estimate(values[0].item(), low, high)


if __name__ == "__main__":
    run_main(main)

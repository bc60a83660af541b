"""Forwards of a target for each token, and processor seconds, by how drafts are made.

python -m benchmarks.drafts --limit 200
"""

import argparse
import time
from statistics import median
from typing import Any

import torch

from dllm_decode import (
    ARVerify,
    Drafting,
    DraftLength,
    Jacobi,
    PathSearch,
    PromptLookup,
    Sampled,
    as_causal_target,
    decode,
    load_model,
)
from eval.metrics.statistics import bootstrap
from eval.runs.names import parse_task
from eval.runs.prompts import encode_prompt
from samplers import FixedSchedule

LENGTHS = DraftLength(8, 8)
WAYS: tuple[tuple[Drafting, float], ...] = (
    (PathSearch(), 0.0), (PromptLookup(3, 8), 0.0), (Jacobi(8), 0.0),
    (PromptLookup(3, 8), 1.0), (Jacobi(8), 1.0),
    (Sampled(), 1.0), (Sampled("block"), 1.0),
)  # fmt: skip


def main() -> None:
    """Prints one line for each way to draft."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=200, help="examples (default: 200)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    drafter, _ = load_model("mini-long", device="cpu", dtype="float32")
    causal, tokenizer = load_model("mini-long-ar", device="cpu", dtype="float32", family="causal")
    target = as_causal_target(causal)
    selection = parse_task(f"ledgers?split=test&limit={options.limit}")
    prompts = [encode_prompt(tokenizer, one, chat=True) for one in selection.examples()]
    print("| drafting | temperature | target forwards a token | drafter's | seconds a token |")
    for drafting, temperature in WAYS:
        model: Any = drafter if drafting.num_forwards else causal
        verifier = ARVerify(target, LENGTHS, drafting)
        shares, asked, seconds = [], [], []
        for seed, prompt in enumerate(prompts):
            started = time.process_time()
            out = decode(
                model, [prompt], FixedSchedule(8), verifier=verifier, seed=seed,
                gen_length=selection.task.gen_length, temperature=temperature,
            )  # fmt: skip
            tokens = len(out.answers()[0])
            seconds.append((time.process_time() - started) / tokens)
            shares.append(int(out.target_nfe) / tokens)
            asked.append(int(out.nfe) / tokens)
        low, high = bootstrap(shares)
        mean = sum(shares) / len(shares)
        print(
            f"| `{drafting!r}` | {temperature} | {mean:.3f} [{low:.3f}, {high:.3f}] | "
            f"{sum(asked) / len(asked):.3f} | {median(seconds):.5f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Teaches the embedded model `mini` by its own rollouts (GRPO), on a CPU.

    python examples/grpo_mini.py runs/seed0 --seed 0 --minutes 10
    python examples/grpo_mini.py runs/price0 --price 0.1
    python examples/grpo_mini.py --plot curve.png runs/*

Each round draws 8 word problems and 8 answers to each. A right answer has reward 1, less the price
of its forwards. The advantage of an answer's tokens is its reward relative to the other answers to
the same problem; their ratio is clipped. The same command goes on where it was stopped.

Source: Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open
Language Models", https://arxiv.org/abs/2402.03300, GRPO. Differs: no KL term, and the probability
of a token is that before the step which committed it, as `score` computes it.
"""

from dllm_decode.launch import run_main  # before torch is loaded

# isort: split
import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm_decode import Rollout, generate, load_model, roll_out, score
from eval.metrics.statistics import paired_score_interval
from eval.tasks import WordProblems
from samplers import ConfidenceThreshold

TASK = WordProblems()
SAMPLER = ConfidenceThreshold(0.3)
CLIP = 0.2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="of a run; of several to plot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="processor time of learning")
    parser.add_argument("--price", type=float, default=0.0, help="of a forward, in rewards")
    parser.add_argument("--num-examples", type=int, default=500, help="held-out problems")
    parser.add_argument("--every", type=int, default=40, help="rounds from test to test")
    parser.add_argument("--plot", type=Path, help="draw the runs into this file")
    options = parser.parse_args(arguments)
    if options.plot:
        plot(options.plot, options.folders)
    else:
        learn(options.folders[0], options)


def learn(folder: Path, options: argparse.Namespace) -> None:
    """Learns until the time is over; tests and saves every few rounds."""
    model: Any
    model, tokenizer = load_model("mini", dtype="float32")
    optimiser = torch.optim.AdamW(model.requires_grad_().parameters(), 1e-4)
    rng, number, seconds, first = random.Random(options.seed), 0, 0.0, []
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        model.load_weights(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        rng.setstate(saved["rng"])
        number, seconds, first = saved["number"], saved["seconds"], saved["first"]
    rewards: list[float] = []
    while True:
        is_over = seconds >= 60.0 * options.minutes
        if is_over or not first or (rewards and number % options.every == 0):
            test = tested(model, tokenizer, options.num_examples)
            first = first or test
            line = {"round": number, "seconds": round(seconds, 1)} | figures(first, test, rewards)
            print(line, flush=True)
            with (folder / "log.jsonl").open("a") as log:
                log.write(f"{json.dumps(line)}\n")
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
            state |= {"rng": rng.getstate(), "number": number, "seconds": seconds, "first": first}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
            rewards = []
        if is_over:
            return
        started = time.process_time()
        examples = [TASK.draw(rng) for _ in range(8)]
        groups = list(
            roll_out(
                model, tokenizer, [example.turns() for example in examples], SAMPLER, num_rows=64,
                gen_length=64, temperature=1.0, seed=options.seed * 100_000 + number,
            )
        )  # fmt: skip
        for index, rollouts, answers in groups:
            right = [TASK.score(examples[index], answer.text)["answer"] for answer in answers]
            prices = [options.price * answer.forwards for answer in answers]
            own = [(one or 0.0) - price for one, price in zip(right, prices, strict=True)]
            rewards += own
            loss = loss_of(model, rollouts, torch.tensor(own))
            if loss is not None:
                (loss / len(groups)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        number, seconds = number + 1, seconds + time.process_time() - started


def loss_of(model: Any, rollouts: list[Rollout], rewards: Tensor) -> Tensor | None:
    """Returns the clipped loss of a group; `None` if all rewards are equal."""
    if (rewards == rewards[0]).all():
        return None
    advantages = ((rewards - rewards.mean()) / rewards.std())[:, None]
    scores = score(model, rollouts)
    assert scores.recorded is not None
    ratio = (scores.logprobs - scores.recorded).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * scores.weights).sum() / scores.weights.sum()


def tested(model: Any, tokenizer: Any, num_examples: int) -> list[tuple[int, int]]:
    """Returns for each held-out problem whether the greedy answer is right, and its forwards."""
    examples = TASK.examples("test", num_examples)
    prompts = [example.turns() for example in examples]
    answers = generate(model, tokenizer, prompts, SAMPLER, gen_length=64, num_rows=32).answers
    pairs = zip(examples, answers, strict=True)
    return [(int(TASK.score(one, own.text)["answer"] == 1), own.forwards) for one, own in pairs]


def figures(first: Any, test: Any, rewards: Sequence[float]) -> dict[str, float]:
    """Returns the figures of a test, with the paired 95 per cent interval of the rise."""
    (before, _), (right, forwards) = zip(*first, strict=True), zip(*test, strict=True)
    low, high = paired_score_interval(before, right)
    found = {"accuracy": sum(right) / len(right), "forwards": sum(forwards) / len(right)}
    rise = (sum(right) - sum(before)) / len(right)
    reward = sum(rewards) / max(1, len(rewards))
    return found | {"rise": rise, "low": low, "high": high, "reward": reward}


def plot(path: Path, folders: Sequence[Path]) -> None:
    """Draws accuracy and forwards of runs over the processor time of learning."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for axis, name in zip(axes, ("accuracy", "forwards"), strict=True):
            minutes = [line["seconds"] / 60 for line in lines]
            axis.plot(minutes, [line[name] for line in lines], label=folder.name)
            axis.set(xlabel="processor minutes of learning", ylabel=f"{name}, greedy")
    axes[0].legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    run_main(main, stopped="Stopped; the same command goes on.")

"""Teaches the embedded model `mini` by its own rollouts (GRPO), on a CPU.

    python examples/grpo_mini.py runs/price0 --price 0.1 --minutes 10

Each round draws 8 word problems and 8 answers to each. A right answer has reward 1, less the price
of its forwards. The advantage of an answer's tokens is its reward relative to the other answers to
the same problem. The model is tested every 40 rounds and at the end, and written to `model` in the
folder.

Source: Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300, GRPO. Differs: no KL
term; one update a round, so that no ratio needs to be clipped.
"""

from dllm_decode.launch import run_main  # before torch is loaded

# isort: split
import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dllm_decode import Answer, Rollout, generate, load_model, roll_out, score
from dllm_decode.models import save_model
from eval.metrics.statistics import paired_score_interval
from eval.tasks import WordProblems
from eval.tasks.base import Example
from samplers import ConfidenceThreshold

TASK = WordProblems()
SAMPLER = ConfidenceThreshold(0.3)
DRAWN: Any = {"gen_length": 64, "temperature": 1.0, "num_rows": 64}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="processor time of learning")
    parser.add_argument("--price", type=float, default=0.0, help="of a forward, in rewards")
    parser.add_argument("--num-examples", type=int, default=500, help="held-out problems")
    learn(parser.parse_args(arguments))


def learn(options: argparse.Namespace) -> None:
    """Learns until the time is over; tests and writes the model every few rounds."""
    loaded: Any = load_model("mini", dtype="float32")
    (model, tokenizer), folder = loaded, options.folder
    optimiser = torch.optim.AdamW(model.requires_grad_().parameters(), 1e-4)
    rng, number, seconds, first = random.Random(options.seed), 0, 0.0, []
    folder.mkdir(parents=True, exist_ok=True)
    rewards: list[float] = []
    while True:
        is_over = seconds >= 60.0 * options.minutes
        if is_over or number % 40 == 0:
            test = answer_held_out(model, tokenizer, options.num_examples)
            first = first or test
            line = {"round": number, "seconds": round(seconds, 1)} | figures(first, test, rewards)
            print(line, flush=True)
            with (folder / "log.jsonl").open("a") as log:
                print(json.dumps(line), file=log)
            save_model(model, folder / "model")
            rewards = []
        if is_over:
            return
        started = time.process_time()
        examples = [TASK.draw(rng) for _ in range(8)]
        prompts = [example.turns() for example in examples]
        seed = options.seed * 100_000 + number
        groups = list(roll_out(model, tokenizer, prompts, SAMPLER, seed=seed, **DRAWN))
        for index, rollouts, answers in groups:
            earned = [is_right(examples[index], a) - options.price * a.forwards for a in answers]
            rewards += earned
            if len(set(earned)) > 1:
                (loss_of(model, rollouts, torch.tensor(earned)) / len(groups)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        number, seconds = number + 1, seconds + time.process_time() - started


def loss_of(model: Any, rollouts: list[Rollout], rewards: Tensor) -> Tensor:
    """Returns the loss of a group whose rewards differ."""
    advantages = ((rewards - rewards.mean()) / rewards.std())[:, None]
    scores = score(model, rollouts)
    assert scores.recorded is not None
    ratio = (scores.logprobs - scores.recorded).exp()
    return -(ratio * advantages * scores.weights).sum() / scores.weights.sum()


def answer_held_out(model: Any, tokenizer: Any, num_examples: int) -> list[tuple[int, int]]:
    """Returns for each held-out problem whether the greedy answer is right, and its forwards."""
    examples = TASK.examples("test", num_examples)
    prompts = [example.turns() for example in examples]
    answers = generate(model, tokenizer, prompts, SAMPLER, gen_length=64, num_rows=32).answers
    return [(is_right(*pair), pair[1].forwards) for pair in zip(examples, answers, strict=True)]


def is_right(example: Example, answer: Answer) -> int:
    """Returns 1 for a right answer, else 0."""
    return int(TASK.score(example, answer.text)["answer"] == 1)


def figures(first: Any, test: Any, rewards: Sequence[float]) -> dict[str, float]:
    """Returns the figures of a test, with the paired 95 per cent interval of the rise."""
    (before, _), (right, forwards) = zip(*first, strict=True), zip(*test, strict=True)
    scores = {"accuracy": fmean(right), "rise": fmean(right) - fmean(before)}
    bounds = paired_score_interval(before, right)._asdict()
    return scores | bounds | {"forwards": fmean(forwards), "reward": fmean(rewards or [0.0])}


if __name__ == "__main__":
    run_main(main)

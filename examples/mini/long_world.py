"""The world of the embedded models `mini-long` and `mini-long-ar`: ledgers, and practice for them.

Used by `train_long.py` and `train_long_ar.py`.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerBase

from dllm_decode.training import (
    Batch,
    FreshRows,
    Kind,
    Minutes,
    Objective,
    Pair,
    Progress,
    ProgressBar,
    Settings,
    make_optimisers,
    train,
)
from eval.tasks.base import Example
from eval.tasks.ledger_words import build_ledger_tokenizer
from eval.tasks.ledgers import MAX_BALANCE, MAX_CHANGE, Ledgers, write_line, write_sum
from eval.tasks.word_problem_templates import (
    HELD_OUT_NAMES,
    HELD_OUT_OBJECTS,
    NAMES,
    OBJECTS,
)

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""Answers prompts with at most so many tokens: ids in, ids without EOS out."""

SPLITS = ("val", "test_entity")

MIXTURE = (
    ((1, 2), (36, 36, 64), 0.45),
    ((3, 4), (68, 68, 96), 0.35),
    ((5, 7), (116, 128), 0.13),
    ((8, 9), (148, 160, 256), 0.07),
)
"""Steps of training ledgers, lengths of answers in tokens, and share of the rows."""


@dataclass(frozen=True)
class Encoder:
    """Looks words up; several times faster than the tokenizer, and equal to it on ledgers.

    Attributes:
        tokenizer: Of the model.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, prompt: str, answer: str) -> Pair:
        """Returns the ids of a question in the chat template, and of its answer."""
        ids = self.tokenizer.get_vocab()
        return [ids[w] for w in f"{prompt} answer :".split()], [ids[w] for w in answer.split()]


def draw_line(rng: random.Random) -> tuple[str, str]:
    """Draws one line to complete, after who has how many; what was said last holds.

    The held-out people come too: they are held out of questions.
    """
    names = rng.sample((*NAMES, *HELD_OUT_NAMES), rng.randint(2, 3))
    said = [*names, *rng.choices(names, k=rng.randint(0, 2))]
    rng.shuffle(said)
    held: dict[str, int] = {}
    for name in said:
        held[name] = rng.randint(1, 50)
    # In the order they were said, each time with a number of its own; the last is in `held`.
    last = {name: i for i, name in enumerate(said)}
    numbers = [held[n] if last[n] == i else rng.randint(1, 50) for i, n in enumerate(said)]
    text = " . ".join(f"{name} has {number}" for name, number in zip(said, numbers, strict=True))
    one, other = rng.sample(names, 2)
    if rng.random() < 0.25:
        line = write_sum(one, held[one], other, held[other])
    else:
        amount = rng.randint(1, MAX_CHANGE)
        line = write_line(one, held[one], amount if amount >= held[one] else
                          rng.choice((amount, -amount)), rng)  # fmt: skip
    start = line.index(" : ") + 2
    return f"{text} . {line[:start]}", line[start + 1 :]


def draw_recall(rng: random.Random) -> tuple[str, str]:
    """Draws who has how many, to be said again in another order; what was said last holds."""
    names = rng.sample((*NAMES, *HELD_OUT_NAMES), rng.randint(2, 4))
    said = [*names, *rng.choices(names, k=rng.randint(0, 5 - len(names)))]
    rng.shuffle(said)
    numbers = [rng.randint(1, MAX_BALANCE) for _ in said]
    held = dict(zip(said, numbers, strict=True))
    rng.shuffle(names)
    pairs = zip(said, numbers, strict=True)
    text = " . ".join(f"{name} has {number}" for name, number in pairs)
    return text, " . ".join(f"{name} has {held[name]}" for name in names)


def draw_echo(rng: random.Random) -> tuple[str, str]:
    """Draws people and objects, the held-out ones too, to be repeated."""
    pool = (*NAMES, *OBJECTS, *2 * HELD_OUT_NAMES, *HELD_OUT_OBJECTS)
    text = " ".join(rng.choice(pool) for _ in range(rng.randint(3, 9)))
    return text, text


class FusedAttention(Objective):
    """An objective with fused attention, which is faster than plain attention of causal models.

    On one CPU core a step of 32 rows of 216 tokens took 0.46 s instead of 0.65 s.

    Args:
        objective: The loss.
    """

    def __init__(self, objective: Objective) -> None:
        self.model, self.eos_id = objective.model, objective.eos_id
        self._objective = objective

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the loss of the objective."""
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
            return self._objective.loss(batch, generator)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands share."""
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs"), help="folder for everything")
    add("--device", default="cpu")
    add("--minutes", type=float, default=30.0, help="length of the whole run")
    add("--pause-after", type=float, default=0.0, help="minutes until it pauses")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--evaluate-every", type=float, default=4.0, help="in minutes")
    add("--evaluate-on", type=int, default=48, help="questions of each split")
    add("--float32", action="store_true", help="no bfloat16 arithmetic")
    add("--threads", type=int, default=1, help="of torch on the CPU")
    add("--seed", type=int, default=0)
    add("--rows", type=int, default=34, help="ledgers a step")
    add("--lines", type=int, default=32, help="single lines to complete a step")
    add("--recalls", type=int, default=32, help="lists of balances to say again a step")
    add("--echoes", type=int, default=0, help="lists to repeat a step")
    add("--matrix-lr", type=float, default=0.02, help="peak rate of Muon")
    add("--other-lr", type=float, default=0.003, help="peak rate of AdamW")
    add("--hidden", type=int, default=128)
    add("--heads", type=int, default=4)
    add("--mlp", type=int, default=384)


def kinds_of(options: argparse.Namespace, encode: Encoder) -> list[Kind]:
    """Returns what a step is made of."""

    def ledgers(name: str, task: Ledgers, gen_lengths: tuple[int, ...], num_rows: int) -> Kind:
        def draw(rng: random.Random) -> Pair:
            example = task.sample(rng)
            return encode(str(example.prompt), example.target)

        return Kind(name, draw, 120, gen_lengths, num_rows)

    kinds = []
    for (least, most), gen_lengths, share in MIXTURE:
        name, task = f"{least} to {most} steps", Ledgers(least, most)
        num_rows = max(1, round(options.rows * share))
        kinds.append(ledgers(name, task, gen_lengths, num_rows))
    if options.lines:
        kinds.append(Kind("lines", lambda rng: encode(*draw_line(rng)), 28, (14,), options.lines))
    if options.recalls:
        recall = Kind("recalls", lambda rng: encode(*draw_recall(rng)), 24, (17,), options.recalls)
        kinds.append(recall)
    if options.echoes:
        kinds.append(Kind("echoes", lambda rng: encode(*draw_echo(rng)), 12, (11,), options.echoes))
    return kinds


def accuracies(
    tokenizer: PreTrainedTokenizerBase, answer: Answer, num_examples: int
) -> dict[str, float]:
    """Measures right answers, and the share of right steps, on held-out numbers and names."""
    task = Ledgers()
    measured = {}
    for split in SPLITS:
        examples = task.examples(split, num_examples)
        scores = score(tokenizer, task, examples, answer)
        measured[split] = sum(each["answer"] for each in scores) / len(scores)
        measured[f"{split} steps"] = sum(each["steps"] for each in scores) / len(scores)
    return measured


def score(
    tokenizer: PreTrainedTokenizerBase,
    task: Ledgers,
    examples: Sequence[Example],
    answer: Answer,
    gen_length: int = 160,
) -> list[dict[str, float]]:
    """Answers examples and scores the answers; 160 tokens are room for nine steps."""
    prompts = [
        list(tokenizer.encode(f"{e.prompt} answer :", add_special_tokens=False)) for e in examples
    ]
    texts = [str(tokenizer.decode(ids)) for ids in answer(prompts, gen_length)]
    pairs = zip(examples, texts, strict=True)
    return [{k: float(v or 0) for k, v in task.score(e, text).items()} for e, text in pairs]


def run(
    options: argparse.Namespace,
    objective: Objective,
    *,
    name: str,
    export: Callable[[Path], Callable[[], dict[str, float]]],
) -> Progress:
    """Trains, and keeps `output/name` ready to ship from the first evaluation on.

    Args:
        options: The parsed command line.
        objective: Model and loss, on its device.
        name: Of the model.
        export: Writes the model to a folder and returns what measures the files.
    """
    tokenizer = build_ledger_tokenizer()
    folder: Path = options.output / name
    settings = Settings(
        budget=Minutes(options.minutes),
        folder=options.output / f"{name}-checkpoints",
        pause_after_s=60 * options.pause_after or float("inf"),
        evaluate_every_s=60 * options.evaluate_every,
        autocast=not options.float32,
        seed=options.seed,
    )
    optimisers = make_optimisers(
        objective.model, matrix_lr=options.matrix_lr, other_lr=options.other_lr
    )
    rows = FreshRows(eos_id=int(tokenizer.eos_token_id), seed=options.seed)
    with ProgressBar(Console(), name) as bar:
        bar.say(f"{sum(p.numel() for p in objective.model.parameters()):,} parameters")

        def evaluate() -> dict[str, float]:
            measured = export(folder)()
            shown = ", ".join(f"{task} {value:.3f}" for task, value in measured.items())
            bar.say(f"measured: {shown}")
            return measured

        progress = train(
            objective,
            optimisers,
            kinds_of(options, Encoder(tokenizer)),
            rows,
            settings,
            evaluate=evaluate,
            observe=bar,
            resume=options.resume,
        )
        record = {
            "settings": {k: v.name if isinstance(v, Path) else v for k, v in vars(options).items()},
            "world": [repr(Ledgers(*steps)) for steps, _, _ in MIXTURE],
            "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
            "samples": progress.samples,
            "steps": progress.step,
            "elapsed_s": round(progress.elapsed_s, 1),
            "history": progress.history,
        }
        text = json.dumps(record, indent=1) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")
        bar.say(f"{progress.samples:,} samples, {progress.elapsed_s / 60:.1f} min; wrote {folder}")
    return progress

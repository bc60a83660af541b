"""The world of the embedded models: what they are trained on, and how they are measured.

Used by `train_mini.py` and `train_mini_ar.py`.
"""

import argparse
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from recipe import Answer, arguments, mean_scores, read_mixtures
from vocabulary import Encoder, build_tokenizer

from dllm_decode.training import Kind, Pair
from eval.tasks import LatinSquare, ListTask, Sudoku4, WordProblems
from eval.tasks.base import GeneratedTask
from eval.tasks.equations import Equations
from eval.tasks.word_problems import MINI_TEMPLATES

SPLIT = "val"

LIST_SHARES: dict[str, float] = read_mixtures()["lists"]

UNSIZED = ("pair_sum", "city")
"""List tasks whose answers all have the same length."""

PUZZLES = (LatinSquare(3), LatinSquare(4), Sudoku4())
PUZZLE_PERIOD = 8
"""Puzzles come seldom, so they come all at once: a forward for a few rows is a waste."""


def draw(
    encode: Encoder, tasks: Sequence[GeneratedTask], shares: Sequence[float], rng: random.Random
) -> Pair:
    """Draws one training example as token ids; `shares` say how often each task is drawn."""
    (task,) = rng.choices(tasks, shares)
    example = task.draw(rng, "train")
    return encode(str(example.prompt), example.target)


def world_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands share."""
    arguments(parser)
    add = parser.add_argument
    add("--batch-size", type=int, default=128, help="rows a step")
    add("--word-problems", type=float, default=1.0, help="share of the rows")
    add("--equations", type=float, default=1.0, help="share of the rows")
    add("--lists", type=float, default=0.0, help="share of the rows")
    add("--puzzles", type=float, default=0.0, help="share of the rows")
    add("--max-value", type=int, default=100, help="greatest number")
    add("--max-factor", type=int, default=9, help="greatest smaller factor")
    add("--templates", nargs="*", default=MINI_TEMPLATES, help="ids; none is every template")
    add("--prompt-length", type=int, default=40, help="of word problems, in tokens")
    add("--gen-lengths", type=int, nargs="+", default=[48, 48, 48, 64], help="in tokens")
    add("--list-length", type=int, default=4, help="items; 0 is 3 to 8")


class MiniWorld:
    """Tokenizer and tasks of a run with these options."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self.options = options
        self.tokenizer = build_tokenizer(max(200, options.max_value))

    def word_problems(self) -> WordProblems:
        return WordProblems(
            max_value=self.options.max_value,
            max_factor=self.options.max_factor,
            templates=tuple(self.options.templates),
        )

    def list_tasks(self) -> list[GeneratedTask]:
        """Returns the list tasks, of one length where they have one."""
        n = self.options.list_length or None
        return [ListTask(each, n=None if each in UNSIZED else n) for each in LIST_SHARES]

    def kinds(self) -> list[Kind]:
        """Returns what a step is made of; kinds without a share are left out."""
        options = self.options
        encode = Encoder(self.tokenizer)
        words = partial(draw, encode, [self.word_problems()], [1.0])
        one = [Equations(options.max_value, options.max_factor)]
        equations = partial(draw, encode, one, [1.0])
        lists = partial(draw, encode, self.list_tasks(), list(LIST_SHARES.values()))
        puzzles = partial(draw, encode, PUZZLES, [1.0, 1.0, 2.0])
        widths = {
            "word_problems": (words, options.prompt_length, tuple(options.gen_lengths), 1),
            "equations": (equations, 6, (8,), 1),
            "lists": (lists, 16, (16,), 1),
            "puzzles": (puzzles, 24, (24, 24, 32), PUZZLE_PERIOD),
        }
        shares = {name: vars(options)[name] for name in widths}
        total = sum(shares.values())
        return [
            Kind(name, drawn, prompt_length, gen_lengths, rows, period)
            for name, (drawn, prompt_length, gen_lengths, period) in widths.items()
            if (rows := round(options.batch_size * shares[name] / total * period))
        ]

    def describe(self) -> dict[str, Any]:
        """Returns what the numbers of a run depend on, besides the options."""
        word_problems = self.word_problems()
        return {
            "word_problems": repr(word_problems),
            "excluded": list(word_problems.excluded),
            "list_shares": LIST_SHARES,
        }


def accuracies(world: MiniWorld, answer: Answer) -> dict[str, float]:
    """Measures the share of right answers of every task."""
    options = world.options
    num_lists = max(8, options.evaluate_on // 8)
    groups: list[tuple[float, Sequence[GeneratedTask], int]] = [
        (options.word_problems, [world.word_problems()], options.evaluate_on),
        (options.lists, world.list_tasks(), num_lists),
        (options.puzzles, PUZZLES, num_lists),
    ]
    return {
        task.name: accuracy(world, task, answer, num_examples)
        for share, tasks, num_examples in groups
        for task in (tasks if share else ())
    }


def accuracy(world: MiniWorld, task: GeneratedTask, answer: Answer, num_examples: int) -> float:
    """Measures the share of right answers of one task."""
    examples = task.examples(SPLIT, num_examples)
    return mean_scores(world.tokenizer, task, examples, answer)["answer"]

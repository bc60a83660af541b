"""The world of the embedded models: what they are trained on, and how they are measured.

Used by `train_mini.py` and `train_mini_ar.py`.
"""

import argparse
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from recipe import Answer, arguments
from transformers import PreTrainedTokenizerBase
from vocabulary import build_tokenizer, encode_prompt

from dllm_decode.training import Kind, Pair
from eval.tasks import LatinSquare, ListTask, Sudoku4, WordProblems
from eval.tasks.base import Example, GeneratedTask
from eval.tasks.equations import Equations
from eval.tasks.word_problems import MINI_TEMPLATES

SPLIT = "val"

LIST_SHARES = {
    "copy": 0.5,
    "reverse": 2.5,
    "sort": 1.5,
    "replace_at": 3.0,
    "insert_at": 1.5,
    "remove_at": 1.5,
    "replace_any": 4.0,
    "remove_any": 1.0,
    "insert_any": 1.5,
    "shuffle": 3.0,
    "agree": 0.5,
    "pair_sum": 0.5,
    "city": 1.0,
}
"""What is hard has more: indices, and answers of which each item depends on all the others."""

UNSIZED = ("pair_sum", "city")
"""List tasks whose answers all have the same length."""

PUZZLE_PERIOD = 8
"""Puzzles come seldom, so they come all at once: a forward for a few rows is a waste."""


@dataclass(frozen=True)
class Mixture:
    """Draws examples from tasks as token ids.

    Attributes:
        tasks: The tasks.
        shares: How often each is drawn, in any unit.
        ids: The tokenizer's vocabulary.
        suffix: Ids that the chat template puts behind a question.
    """

    tasks: tuple[GeneratedTask, ...]
    shares: tuple[float, ...]
    ids: Mapping[str, int] = field(repr=False)
    suffix: tuple[int, ...]

    def __call__(self, rng: random.Random) -> Pair:
        """Draws one training example."""
        bounds = list(accumulate(self.shares))
        task = self.tasks[bisect(bounds, rng.random() * bounds[-1])]
        return self.encode(task.draw(rng, "train"))

    def encode(self, example: Example) -> Pair:
        """Looks the words up; several times faster than the tokenizer, and equal to it."""
        ids = self.ids
        prompt = [ids[word] for word in str(example.prompt).split()]
        return [*prompt, *self.suffix], [ids[word] for word in example.target.split()]


def world_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands share."""
    arguments(parser)
    parser.add_argument("--batch-size", type=int, default=128, help="rows a step")
    parser.add_argument("--word-problems", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--equations", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--lists", type=float, default=0.0, help="share of the rows")
    parser.add_argument("--puzzles", type=float, default=0.0, help="share of the rows")
    parser.add_argument("--max-value", type=int, default=100, help="greatest number")
    parser.add_argument("--max-factor", type=int, default=9, help="greatest smaller factor")
    parser.add_argument(
        "--templates", nargs="*", default=MINI_TEMPLATES, help="ids; none is every template"
    )
    parser.add_argument("--prompt-length", type=int, default=40, help="of word problems, in tokens")
    parser.add_argument(
        "--gen-lengths", type=int, nargs="+", default=[48, 48, 48, 64], help="in tokens"
    )
    parser.add_argument("--list-length", type=int, default=4, help="items; 0 is 3 to 8")


@dataclass(frozen=True)
class World:
    """Tokenizer, tasks and options of a run.

    Attributes:
        options: The parsed command line.
        tokenizer: Of the model.
        suffix: Ids that the chat template puts behind a question.
    """

    options: argparse.Namespace
    tokenizer: PreTrainedTokenizerBase
    suffix: tuple[int, ...]

    @staticmethod
    def of(options: argparse.Namespace) -> "World":
        """Sets up the world that the options describe."""
        torch.set_num_threads(options.threads)
        tokenizer = build_tokenizer(max(200, options.max_value))
        world = World(options, tokenizer, tuple(encode_prompt(tokenizer, "copy"))[1:])
        example = world.word_problems().draw(random.Random(0))
        prompt, _ = world.mixture([world.word_problems()], [1.0]).encode(example)
        assert prompt == encode_prompt(tokenizer, str(example.prompt))
        return world

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

    def mixture(self, tasks: Sequence[GeneratedTask], shares: Sequence[float]) -> Mixture:
        return Mixture(tuple(tasks), tuple(shares), self.tokenizer.get_vocab(), self.suffix)

    def kinds(self) -> list[Kind]:
        """Returns what a step is made of; kinds without a share are left out."""
        options = self.options
        words = self.mixture([self.word_problems()], [1.0])
        equations = self.mixture([Equations(options.max_value, options.max_factor)], [1.0])
        lists = self.mixture(self.list_tasks(), list(LIST_SHARES.values()))
        puzzles = self.mixture([LatinSquare(3), LatinSquare(4), Sudoku4()], [1.0, 1.0, 2.0])
        widths = {
            "word_problems": (words, options.prompt_length, tuple(options.gen_lengths), 1),
            "equations": (equations, 6, (8,), 1),
            "lists": (lists, 16, (16,), 1),
            "puzzles": (puzzles, 24, (24, 24, 32), PUZZLE_PERIOD),
        }
        shares = {name: vars(options)[name] for name in widths}
        total = sum(shares.values())
        return [
            Kind(name, draw, prompt_length, gen_lengths, rows, period)
            for name, (draw, prompt_length, gen_lengths, period) in widths.items()
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


def accuracies(world: World, answer: Answer) -> dict[str, float]:
    """Measures the share of right answers of every task.

    Args:
        world: What is asked.
        answer: The model.
    """
    num_problems = world.options.evaluate_on
    num_lists = max(8, num_problems // 8)
    measured = {}
    if world.options.word_problems:
        task = world.word_problems()
        measured["word_problems"] = accuracy(
            world, task, task.examples(SPLIT, num_problems), answer, task.gen_length
        )
    groups: list[tuple[float, list[GeneratedTask], int]] = [
        (world.options.lists, world.list_tasks(), 16),
        (world.options.puzzles, [LatinSquare(3), LatinSquare(4), Sudoku4()], 24),
    ]
    for share, tasks, gen_length in groups:
        if share:
            examples = [list(each.examples(SPLIT, num_lists)) for each in tasks]
            merged = [example for part in examples for example in part]
            texts = iter(texts_of(world, merged, answer, gen_length))
            for each, part in zip(tasks, examples, strict=True):
                scores = [float(each.score(e, next(texts))["answer"] or 0) for e in part]
                measured[each.name] = sum(scores) / len(scores)
    return measured


def accuracy(
    world: World,
    task: GeneratedTask,
    examples: Sequence[Example],
    answer: Answer,
    gen_length: int,
) -> float:
    """Measures the share of right answers among examples of one task."""
    texts = texts_of(world, examples, answer, gen_length)
    scores = [task.score(e, text)["answer"] or 0 for e, text in zip(examples, texts, strict=True)]
    return sum(scores) / len(scores)


def texts_of(
    world: World, examples: Sequence[Example], answer: Answer, gen_length: int
) -> list[str]:
    """Answers examples."""
    prompts = [encode_prompt(world.tokenizer, str(example.prompt)) for example in examples]
    # A function of the folder's own tokenizer: special tokens stay visible where they are wrong.
    return [str(world.tokenizer.decode(ids)) for ids in answer(prompts, gen_length)]

"""The world of the embedded models `mini-long` and `mini-long-ar`: ledgers.

Used by `train_long.py` and `train_long_ar.py`.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial

import recipe
from recipe import Answer, scores_of
from transformers import PreTrainedTokenizerBase
from vocabulary import Encoder

from dllm_decode.training import Kind, Pair
from eval.tasks.grammar import cast
from eval.tasks.ledgers import Ledgers, draw_ledger, write_answer, write_story

SPLITS = ("val", "test_entity")

MIXTURE = (
    ((2, 4), 36, 80, 0.25),
    ((5, 7), 54, 136, 0.35),
    ((8, 9), 68, 168, 0.20),
    ((10, 11), 78, 204, 0.20),
)
"""Steps of training ledgers, lengths of prompts and answers in tokens, and share of the rows."""

STORIES = (
    ((2, 4), 26, 72, 0.5),
    ((5, 7), 44, 120, 0.5),
)
"""The same of the stories without a question."""

WORLD = [repr(Ledgers(*steps)) for steps, *_ in MIXTURE]


Draw = Callable[[random.Random, tuple[int, int]], tuple[str, str]]
"""Draws a text and its continuation, of so many steps."""


def draw_question(rng: random.Random, steps: tuple[int, int]) -> tuple[str, str]:
    """Draws a question and its answer."""
    example = Ledgers(*steps).draw(rng)
    return str(example.prompt), example.target


def draw_story(rng: random.Random, steps: tuple[int, int]) -> tuple[str, str]:
    """Draws a story that ends without a question, and the lines of its steps.

    The held-out people and objects come here and in no question: a model does not write a name that
    it never wrote in training.
    """
    people = cast("held_out" if rng.random() < 0.7 else "known").names
    thing = rng.choice(cast("held_out" if rng.random() < 0.7 else "known").objects)
    ledger = None
    while ledger is None:
        ledger = draw_ledger(rng, rng.randint(*steps), people)
    lines, _, _ = write_answer(ledger, rng).partition(" ####")
    return write_story(ledger, rng, thing), lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands share."""
    recipe.arguments(parser)
    parser.set_defaults(evaluate_every=4.0, evaluate_on=48)
    parser.add_argument("--rows", type=int, default=64, help="ledgers a step")
    parser.add_argument("--stories", type=int, default=16, help="stories without a question a step")


def kinds_of(options: argparse.Namespace, encode: Encoder) -> list[Kind]:
    """Returns what a step is made of."""

    def drawn(draw: Draw, steps: tuple[int, int], rng: random.Random) -> Pair:
        return encode(*draw(rng, steps))

    kinds = []
    for name, draw, mixture, num_rows in (
        ("", draw_question, MIXTURE, options.rows),
        ("stories of ", draw_story, STORIES, options.stories),
    ):
        for steps, prompt_length, gen_length, share in mixture if num_rows else ():
            rows = max(1, round(num_rows * share))
            title, pair = f"{name}{steps[0]} to {steps[1]} steps", partial(drawn, draw, steps)
            kinds.append(Kind(title, pair, prompt_length, (gen_length,), rows))
    return kinds


def accuracies(
    tokenizer: PreTrainedTokenizerBase, answer: Answer, num_examples: int
) -> dict[str, float]:
    """Measures right answers, and the share of right steps, on held-out numbers and names."""
    task, measured = Ledgers(), {}
    for split in SPLITS:
        examples = task.examples(split, num_examples)
        # 192 tokens are room for eleven steps.
        scores = scores_of(tokenizer, task, examples, answer, gen_length=192)
        measured[split] = sum(each["answer"] for each in scores) / len(scores)
        measured[f"{split} steps"] = sum(each["steps"] for each in scores) / len(scores)
    return measured

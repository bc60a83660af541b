"""The world of the embedded models `mini-long` and `mini-long-ar`: ledgers.

Used by `train_long.py` and `train_long_ar.py`.
"""

import argparse
import random
from functools import partial

import recipe
from recipe import Answer, mean_scores, read_mixtures
from transformers import PreTrainedTokenizerBase
from vocabulary import Encoder

from dllm_decode.training import Kind, Pair
from eval.tasks.grammar import cast
from eval.tasks.ledgers import Ledgers, draw_ledger, write_answer, write_story

SPLITS = ("val", "test_entity")

MIXTURE, STORIES = (read_mixtures()[name] for name in ("ledgers", "stories"))

WORLD = [repr(Ledgers(*steps)) for steps, *_ in MIXTURE]


def draw_question(encode: Encoder, steps: tuple[int, int], rng: random.Random) -> Pair:
    """Draws a ledger with its question."""
    example = Ledgers(*steps).draw(rng)
    return encode(str(example.prompt), example.target)


def draw_story(encode: Encoder, steps: tuple[int, int], rng: random.Random) -> Pair:
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
    return encode(write_story(ledger, rng, thing), lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands share."""
    recipe.arguments(parser)
    parser.set_defaults(evaluate_every=4.0, evaluate_on=48)
    parser.add_argument("--rows", type=int, default=64, help="ledgers a step")
    parser.add_argument("--stories", type=int, default=16, help="stories without a question a step")


def kinds_of(options: argparse.Namespace, encode: Encoder) -> list[Kind]:
    """Returns what a step is made of."""
    drawn = [("", draw_question, options.rows, MIXTURE)]
    if options.stories:
        drawn.append(("stories of ", draw_story, options.stories, STORIES))
    return [
        Kind(
            f"{of}{steps[0]} to {steps[1]} steps", partial(draw, encode, steps), prompt_length,
            (gen_length,), max(1, round(num_rows * share)),
        )
        for of, draw, num_rows, mixture in drawn
        for steps, prompt_length, gen_length, share in mixture
    ]  # fmt: skip


def accuracies(
    tokenizer: PreTrainedTokenizerBase, num_examples: int, answer: Answer
) -> dict[str, float]:
    """Measures right answers, and the share of right steps, on held-out numbers and names."""
    task, measured = Ledgers(), {}
    for split in SPLITS:
        examples = task.examples(split, num_examples)
        # 192 tokens are room for eleven steps.
        scores = mean_scores(tokenizer, task, examples, answer, gen_length=192)
        measured |= {split: scores["answer"], f"{split} steps": scores["steps"]}
    return measured

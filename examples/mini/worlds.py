"""The worlds of the embedded models: rows to train on, and questions to measure.

Rows are of some kinds of examples: `word_problems`, `equations` and `lists` in the words of `mini`;
`ledgers`, and `stories` without a question, in the words of `mini-long`.
"""

import random
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from vocabulary import encode

from dllm_decode.training import Kind, Pair
from eval.runs.prompts import encode_prompt
from eval.tasks import ListTask, WordProblems
from eval.tasks.base import GeneratedTask
from eval.tasks.equations import Equations
from eval.tasks.grammar import cast
from eval.tasks.ledgers import Ledgers, draw_ledger, write_answer, write_story

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""Answers prompts with at most so many tokens: ids in, ids without EOS out."""

RECIPES = Path(__file__).with_name("recipes.toml")
TABLE: dict[str, Any] = tomllib.loads(RECIPES.read_text(encoding="utf-8"))
MIXTURES = TABLE["mixtures"]


def kinds_of(
    tokenizer: PreTrainedTokenizerBase, rows: Mapping[str, int], gen_lengths: tuple[int, ...]
) -> list[Kind]:
    """Returns the kinds of examples in a step that has so many rows of each."""
    # How an example is drawn; columns of its prompt and of its answer; share of the rows.
    drawn: dict[str, list[tuple[Any, int, tuple[int, ...], float]]] = {
        "word_problems": [(partial(draw_example, {WordProblems(): 1}), 40, gen_lengths, 1)],
        "equations": [(partial(draw_example, {Equations(): 1}), 6, (8,), 1)],
        "lists": [(partial(draw_example, list_tasks()), 16, (16,), 1)],
    }
    of_steps = {
        "ledgers": lambda steps: partial(draw_example, {Ledgers(*steps): 1}),
        "stories": lambda steps: partial(draw_story, steps),
    }
    for name, drawing in of_steps.items():
        drawn[name] = [
            (drawing(steps), prompt_length, (gen_length,), share)
            for steps, prompt_length, gen_length, share in MIXTURES[name]
        ]
    return [
        Kind(f"{name} {i}", partial(draw, tokenizer.get_vocab()), *columns, round(number * share))
        for name, number in rows.items()
        for i, (draw, *columns, share) in enumerate(drawn[name])
    ]


def list_tasks() -> dict[GeneratedTask, float]:
    """Returns the list tasks, and how often each is drawn."""
    return {ListTask(keyword): share for keyword, share in MIXTURES["lists"].items()}


def draw_example(
    tasks: Mapping[GeneratedTask, float], ids: Mapping[str, int], rng: random.Random
) -> Pair:
    """Draws an example of one of the tasks, each with its share, as token ids."""
    (task,) = rng.choices(list(tasks), list(tasks.values()))
    example = task.draw(rng, "train")
    return encode(ids, str(example.prompt), example.target)


def draw_story(steps: tuple[int, int], ids: Mapping[str, int], rng: random.Random) -> Pair:
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
    return encode(ids, write_story(ledger, rng, thing), lines)


def accuracies(
    tokenizer: PreTrainedTokenizerBase, rows: Mapping[str, int], num_examples: int, answer: Answer
) -> dict[str, float]:
    """Measures the share of right answers to held-out questions, and of right steps of ledgers."""
    measured: dict[str, list[tuple[str, GeneratedTask, str, int]]] = {
        "word_problems": [("word_problems", WordProblems(), "val", num_examples)],
        "lists": [(task.name, task, "val", -(-num_examples // 8)) for task in list_tasks()],
        "ledgers": [(each, Ledgers(), each, num_examples) for each in ("val", "test_entity")],
    }
    means = {}
    for name, task, split, number in (one for kind in rows for one in measured.get(kind, ())):
        examples = task.examples(split, number)
        prompts = [encode_prompt(tokenizer, example, chat=True) for example in examples]
        # 192 tokens are room for ledgers of eleven steps. Wrong special tokens stay visible.
        texts = map(tokenizer.decode, answer(prompts, min(task.gen_length, 192)))
        scores = [task.score(*pair) for pair in zip(examples, texts, strict=True)]
        for score, label in (("answer", name), ("steps", f"{name} steps")):
            if score in scores[0]:
                means[label] = sum(each[score] or 0 for each in scores) / number
    return means

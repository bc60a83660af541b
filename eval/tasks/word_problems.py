"""Word problems in the manner of GSM8K, drawn from templates in a world of small whole numbers."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eval.tasks.base import Example, GeneratedTask, split_of
from eval.tasks.grammar import cast
from eval.tasks.number_world import (
    MAX_FACTOR,
    MAX_VALUE,
    NamedNumbers,
    NumberPlan,
    draw,
    plan_of,
    templates,
)

MAX_TRIES = 200_000

STRICT_ANSWER = re.compile(r"#### (\d+)(?!\S)")
NUMBER = re.compile(r"(?<!\S)\d+(?!\S)")
EQUATION = re.compile(r"(?<!\S)(\d+) ([-+*/]) (\d+) = (\d+)(?!\S)")
SOLUTION = re.compile(r"(?:[a-z][a-z ]* \d+ [-+*/] \d+ = \d+ \. )+#### \d+")


@dataclass(frozen=True)
class WordProblems(GeneratedTask):
    """Word problems of two to four steps whose every number is one word.

    The answer is one sentence for each step and then the result:
    `anna now has 12 + 5 = 17 . after giving some away anna has 17 - 3 = 14 . #### 14`.
    Every operand, intermediate and result is a whole number in [1, 100]; one factor of each
    product, and each divisor, is at most 9; divisions are exact. A template's ranges are tightened
    by interval arithmetic, and a slot is uniform over the numbers that the earlier slots allow.

    Splits: `train`, `val` and `test` are disjoint in (template, numbers). With numbers of `test`,
    `test_entity` has people and objects that no training problem mentions, and `test_large`
    solutions with a number above two thirds of the greatest that the template allows.
    """

    name = "word_problems"
    version = 1
    primary = "answer"
    marker = "####"
    gen_length = 64
    splits = ("train", "val", "test", "test_entity", "test_large")

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one problem; templates are equally likely."""
        self.require(split, None)
        plan = plan_of(list(templates().values())[int(rng.random() * len(templates()))])
        for _ in range(MAX_TRIES):
            numbers = draw(plan, rng.random)
            if numbers is not None and is_of(split, plan, numbers):
                return example_of(plan, numbers, rng, split)
        raise self.none_found(split, "choose another seed", MAX_TRIES)

    def seed_of(self, split: str, seed: int) -> str:
        world = f"max_value={MAX_VALUE}, max_factor={MAX_FACTOR}, templates={tuple(templates())}"
        return f"WordProblems({world});{split};{seed}"

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary): the first `#### n` is right. `answer_flexible`: the last number is
        right. `steps_valid`: share of the equations that are true. `consistent`: every operand
        is in the question, or is an earlier result.
        `format`: the text is steps and then `#### n`, nothing else. Without an equation
        `steps_valid` and `consistent` are 0.
        """
        strict = STRICT_ANSWER.search(text)
        numbers = NUMBER.findall(text)
        equations = EQUATION.findall(text)
        true = sum(is_true(*equation) for equation in equations)
        return {
            "answer": float(strict is not None and int(strict[1]) == example.meta["answer"]),
            "answer_flexible": float(bool(numbers) and int(numbers[-1]) == example.meta["answer"]),
            "steps_valid": true / len(equations) if equations else 0.0,
            "consistent": float(is_consistent(example, equations)),
            "format": float(SOLUTION.fullmatch(text.strip()) is not None),
        }


def example_of(plan: NumberPlan, numbers: NamedNumbers, rng: random.Random, split: str) -> Example:
    """Returns the problem with these numbers, and with people and objects drawn by `rng`."""
    template = plan.template
    names, objects = cast("held_out" if split == "test_entity" else "known")
    slots: dict[str, int | str] = {**numbers}
    slots["A"], slots["B"], slots["C"] = distinct(names, 3, rng)
    slots["x"], slots["y"] = distinct(objects, 2, rng)
    meta = {
        "template": template.id,
        "num_steps": len(template.steps),
        "numbers": {slot: numbers[slot] for slot in template.slots},
        "answer": numbers[template.steps[-1].result],
    }
    return Example(template.question.format_map(slots), template.answer.format_map(slots), meta)


def is_of(split: str, plan: NumberPlan, numbers: NamedNumbers) -> bool:
    """Says whether a problem with these numbers is of a split."""
    if split == "test_large":
        greatest = max(interval.greatest for interval in plan.ranges.values())
        if 3 * max(numbers.values()) <= 2 * greatest:
            return False
    template = plan.template
    # The key has no names, because a problem with other people is the same problem.
    key = f"{template.id};{','.join([f'{slot}={numbers[slot]}' for slot in template.slots])}"
    return split_of(key) == split.partition("_")[0]


def distinct(pool: tuple[str, ...], count: int, rng: random.Random) -> list[str]:
    """Draws different words; several times faster than `rng.sample` for two or three."""
    words: list[str] = []
    while len(words) < count:
        word = pool[int(rng.random() * len(pool))]
        if word not in words:
            words.append(word)
    return words


def is_true(left: str, operator: str, right: str, result: str) -> bool:
    """Says whether an equation between whole numbers holds; division must be exact."""
    a, b, c = int(left), int(right), int(result)
    return {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b > 0 and a == b * c}[operator]


def is_consistent(example: Example, equations: list[tuple[str, str, str, str]]) -> bool:
    """Says whether every operand is given or an earlier result."""
    allowed = set(NUMBER.findall(str(example.prompt)))
    for left, _, right, result in equations:
        if left not in allowed or right not in allowed:
            return False
        allowed.add(result)
    return bool(equations)

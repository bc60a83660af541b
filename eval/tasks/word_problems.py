"""Word problems in the manner of GSM8K, drawn from templates in a world of small whole numbers."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from eval.tasks.base import Example, GeneratedTask, split_of
from eval.tasks.grammar import cast, word_list
from eval.tasks.number_world import NumberPlan, Numbers, Template, draw, plan_of, templates
from samplers.checks import require_count

MINI_TEMPLATES = word_list(
    "gain_lose boxes_extra share_rest change more_pages leak buy_two trees bus teams shop_day "
    "share_bill"
)
"""The templates that the embedded model `mini` was trained on."""

SPLITS = ("train", "val", "test", "test_template", "test_entity", "test_large")
MAX_TRIES = 200_000

STRICT_ANSWER = re.compile(r"#### (\d+)(?!\S)")
NUMBER = re.compile(r"(?<!\S)\d+(?!\S)")
EQUATION = re.compile(r"(?<!\S)(\d+) ([-+*/]) (\d+) = (\d+)(?!\S)")
SOLUTION = re.compile(r"(?:[a-z][a-z ]* \d+ [-+*/] \d+ = \d+ \. )+#### \d+")


@dataclass(frozen=True)
class WordProblems(GeneratedTask):
    """Word problems of two to six steps whose every number is one word.

    The answer is one sentence for each step and then the result:
    `anna now has 12 + 5 = 17 . after giving some away anna has 17 - 3 = 14 . #### 14`.
    Every operand, intermediate and result is a whole number in [1, max_value]; one factor of each
    product, and each divisor, is at most `max_factor`; divisions are exact.

    A template's ranges are clipped to the world and tightened by interval arithmetic. A template
    with fewer than 500 number tuples is left out (`excluded`). A slot is uniform over the numbers
    that the earlier slots allow.

    Splits: `train`, `val` and `test` are disjoint in (template, numbers).
    `test_template` has the held-out templates. With numbers of `test`, `test_entity` has people and
    objects that no training problem mentions, and `test_large` solutions with a number above two
    thirds of the greatest that the template allows.

    The defaults are the world of the embedded models `mini` and `mini-ar`.

    Attributes:
        max_value: Greatest number of the world, at least 20.
        max_factor: Greatest value of a product's smaller factor, and of a divisor, at least 2.
        templates: Ids of the templates to use; empty is every one the world allows.
    """

    max_value: int = 100
    max_factor: int = 9
    templates: tuple[str, ...] = MINI_TEMPLATES

    name = "word_problems"
    version = 1
    primary = "answer"
    marker = "####"
    gen_length = 64

    def __post_init__(self) -> None:
        require_count("max_value", self.max_value, 20)
        require_count("max_factor", self.max_factor, 2)
        ids = tuple(templates())
        unknown = sorted(set(self.templates) - set(ids))
        if unknown:
            raise ValueError(
                f"templates must be ids such as {ids[0]!r}, got {', '.join(unknown)}; "
                f"the ids are {', '.join(ids)}."
            )

    @property
    def splits(self) -> tuple[str, ...]:
        held_out = any(template.held_out for template in self._chosen)
        return SPLITS if held_out else tuple(s for s in SPLITS if s != "test_template")

    @property
    def excluded(self) -> tuple[str, ...]:
        """Ids of the chosen templates that this world is too narrow for."""
        planned = {plan.template.id for plan in self._plans}
        return tuple(template.id for template in self._chosen if template.id not in planned)

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws one problem; templates are equally likely."""
        self.require(split, None)
        held_out = split == "test_template"
        plans = [plan for plan in self._plans if plan.template.held_out == held_out]
        if not plans:
            raise ValueError(
                f"Split {split!r} needs a template with at least 500 problems, got none from "
                f"{self!r}; raise max_value or name other templates."
            )
        plan = plans[int(rng.random() * len(plans))]
        for _ in range(MAX_TRIES):
            numbers = draw(plan, rng.random)
            if numbers is not None and is_of(split, plan, numbers):
                return example_of(plan, numbers, rng, split)
        remedy = f"raise max_value or leave the template {plan.template.id!r} out"
        raise self.none_found(split, remedy, MAX_TRIES)

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary): the first `#### n` is right. `answer_flexible`: the last number is
        right. `steps_valid`: share of the equations that are true. `consistent`: every operand
        is in the question, is an earlier result, or is a constant that the question implies.
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

    def extract(self, text: str) -> str:
        """Returns the number after `####`; the whole text if it has no such number."""
        strict = STRICT_ANSWER.search(text)
        return strict[1] if strict else super().extract(text)

    @cached_property
    def _chosen(self) -> tuple[Template, ...]:
        wanted = self.templates or templates()
        return tuple(template for name, template in templates().items() if name in wanted)

    @cached_property
    def _plans(self) -> tuple[NumberPlan, ...]:
        """The plans of the templates that the world is wide enough for."""
        plans = (plan_of(template, self.max_value, self.max_factor) for template in self._chosen)
        return tuple(plan for plan in plans if plan is not None)


def example_of(plan: NumberPlan, numbers: Numbers, rng: random.Random, split: str) -> Example:
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
        "constants": template.constants,
        "answer": numbers[template.steps[-1].result],
    }
    return Example(template.question.format_map(slots), template.answer.format_map(slots), meta)


def is_of(split: str, plan: NumberPlan, numbers: Numbers) -> bool:
    """Says whether a problem with these numbers is of a split."""
    if split == "test_template":
        return True
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
    """Says whether every operand is given, implied, or an earlier result."""
    allowed = {str(number) for number in example.meta["constants"]}
    allowed |= set(NUMBER.findall(str(example.prompt)))
    for left, _, right, result in equations:
        if left not in allowed or right not in allowed:
            return False
        allowed.add(result)
    return bool(equations)

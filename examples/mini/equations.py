"""Single equations: the arithmetic of word problems without the words."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from eval.tasks.base import Example, SampledTask
from samplers.checks import require_count

OPERATORS = ("+", "-", "*", "/")


@dataclass(frozen=True)
class Equations(SampledTask):
    """Equations of two whole numbers, such as `12 + 5 =`, answered by `12 + 5 = 17 .`.

    Operators are equally likely. All numbers are in [1, max_value]; the smaller factor of a
    product, and a divisor, is at most `max_factor`; divisions are exact. Splits go by the equation.

    Attributes:
        max_value: Greatest number, at least 4.
        max_factor: Greatest value of a product's smaller factor, and of a divisor, at least 1.
    """

    max_value: int = 100
    max_factor: int = 9

    name = "equations"
    version = 1
    primary = "answer"
    gen_length = 8

    def __post_init__(self) -> None:
        require_count("max_value", self.max_value, 4)
        require_count("max_factor", self.max_factor, 1)

    def sample(self, rng: random.Random) -> Example:
        """Draws one equation."""
        prompt, result = self._equation(rng)
        return Example(prompt, f"{prompt} {result} .", {"answer": result})

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer: `answer` is 1 if it is the whole equation, rightly solved."""
        return {"answer": float(text.strip() == example.target)}

    def _equation(self, rng: random.Random) -> tuple[str, int]:
        operator = rng.choice(OPERATORS)
        if operator in "+-":
            total = rng.randint(2, self.max_value)
            part = rng.randint(1, total - 1)
            if operator == "+":
                return f"{part} + {total - part} =", total
            return f"{total} - {part} =", total - part
        factor = rng.randint(1, min(self.max_factor, self.max_value))
        cofactor = rng.randint(1, self.max_value // factor)
        if operator == "/":
            return f"{factor * cofactor} / {factor} =", cofactor
        first, second = rng.sample((factor, cofactor), 2)
        return f"{first} * {second} =", factor * cofactor

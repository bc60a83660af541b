"""Single equations: the arithmetic of word problems without the words."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from eval.tasks.base import Example, SampledTask

OPERATORS = ("+", "-", "*", "/")
MAX_VALUE, MAX_FACTOR = 100, 9


@dataclass(frozen=True)
class Equations(SampledTask):
    """Equations of two whole numbers, such as `12 + 5 =`, answered by `12 + 5 = 17 .`.

    Operators are equally likely. All numbers are in [1, MAX_VALUE]; the smaller factor of a
    product, and a divisor, is at most MAX_FACTOR; divisions are exact. Splits go by the equation.
    """

    name = "equations"
    version = 1
    primary = "answer"
    gen_length = 8

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
            total = rng.randint(2, MAX_VALUE)
            part = rng.randint(1, total - 1)
            if operator == "+":
                return f"{part} + {total - part} =", total
            return f"{total} - {part} =", total - part
        factor = rng.randint(1, MAX_FACTOR)
        cofactor = rng.randint(1, MAX_VALUE // factor)
        if operator == "/":
            return f"{factor * cofactor} / {factor} =", cofactor
        first, second = rng.sample((factor, cofactor), 2)
        return f"{first} * {second} =", factor * cofactor

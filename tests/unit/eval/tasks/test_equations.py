import random

import pytest

from eval.tasks import Equations

TASK = Equations(60, 7)


def test_every_equation_is_true_and_stays_in_the_world() -> None:
    rng = random.Random(0)
    seen = set()
    for _ in range(2000):
        example = TASK.draw(rng)
        first, operator, second, _, result, _ = example.target.split()
        numbers = (int(first), int(second), int(result))
        assert all(1 <= number <= 60 for number in numbers)
        a, b, c = numbers
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator] == c
        assert {"*": min(a, b), "/": b}.get(operator, 1) <= 7
        seen.add(operator)
    assert seen == set("+-*/")


def test_the_right_answer_scores_one_and_a_wrong_one_zero() -> None:
    for example in TASK.examples("test", 20):
        assert TASK.score(example, f" {example.target} ")["answer"] == 1.0
        assert TASK.score(example, example.target.replace("=", "= 1"))["answer"] == 0.0


def test_a_world_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="max_value must be a whole number, at least 4"):
        Equations(max_value=3)
    with pytest.raises(ValueError, match="max_factor must be a whole number, at least 1"):
        Equations(max_factor=0)

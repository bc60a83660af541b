import random

from examples.mini.equations import Equations

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

import random

from examples.mini.equations import Equations


def test_every_equation_is_true_and_stays_in_the_world() -> None:
    task, rng = Equations(), random.Random(0)
    seen = set()
    for _ in range(2000):
        example = task.draw(rng)
        first, operator, second, _, result, _ = example.target.split()
        numbers = (int(first), int(second), int(result))
        assert all(1 <= number <= 100 for number in numbers)
        a, b, c = numbers
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator] == c
        assert {"*": min(a, b), "/": b}.get(operator, 1) <= 9
        seen.add(operator)
    assert seen == set("+-*/")

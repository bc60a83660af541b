"""Numbers, against decimal arithmetic."""

from decimal import Decimal

import pytest

from dllm_decode.text.constraints.schemas.numbers import (
    at_least,
    at_most,
    equal_to,
    is_bound,
    is_step,
    multiples_of,
)

TEXTS = [f"{sign}{whole}{part}" for sign in ("", "-") for whole in (0, 1, 2, 7, 10, 99, 105)
         for part in ("", ".0", ".5", ".50", ".07", ".999")]  # fmt: skip


@pytest.mark.parametrize("bound", ["0", "-1", "7", "10", "2.5", "-0.75", "99.07", "1e2", "1e-3"])
def test_numbers_within_bounds_are_those_that_are_greater(bound: str) -> None:
    limit = Decimal(bound)
    for text in TEXTS:
        value = Decimal(text)
        assert at_least(limit, is_open=False).has(text) == (value >= limit), text
        assert at_least(limit, is_open=True).has(text) == (value > limit), text
        assert at_most(limit, is_open=False).has(text) == (value <= limit), text
        assert at_most(limit, is_open=True).has(text) == (value < limit), text
        assert equal_to(limit).has(text) == (value == limit), text
    for text in ("007", "+1", "1.", ".5", "1e3", ""):
        assert not at_least(Decimal(-1000), is_open=False).has(text)


@pytest.mark.parametrize("step", ["1", "7", "0.01", "0.3", "2.5", "10", "1e2"])
def test_multiples_leave_no_remainder(step: str) -> None:
    numbers = multiples_of(Decimal(step))
    for text in TEXTS:
        assert numbers.has(text) == (Decimal(text) % Decimal(step) == 0), text


def test_numbers_of_few_digits_can_be_bounds_and_steps() -> None:
    assert is_bound(1e59)
    assert not is_bound(1e60)
    assert is_step(0.001)
    assert not any(map(is_step, (1234567, 0, -1)))

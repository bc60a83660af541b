"""Templates for `decode_many`: what is given stays, and the rest is as in one batch with all."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from toys import DriftingModel

from dllm_decode import (
    decode,
    decode_many,
)
from samplers import FixedSchedule

OPTIONS: Any = {"gen_length": 20, "block_length": 8}
SHORT: Any = {"gen_length": 4, "block_length": 4}


def test_templates_are_taken_in_step_with_the_prompts() -> None:
    model = DriftingModel()

    def given() -> Iterator[list[int]]:
        return ([index % 20 + 1, model.mask_id] for index in count())

    outputs = decode_many(
        model, ([index % 20 + 1] for index in count()), FixedSchedule(4), num_rows=3,
        templates=given(), **SHORT,
    )  # fmt: skip
    for index in range(10):
        assert int(next(outputs).tokens[0, 0]) == index % 20 + 1


@pytest.mark.parametrize("number", [1, 4])
def test_another_number_than_that_of_the_prompts_is_refused_at_once(number: int) -> None:
    with pytest.raises(ValueError, match=f"one answer per prompt, 3, got {number}"):
        decode_many(
            DriftingModel(), [[1], [2], [3]], FixedSchedule(4), templates=[[5]] * number, **SHORT
        )


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (0, "got 0 templates and more prompts"),
        (2, "got 2 templates and more prompts"),
        (4, "got 3 prompts and more templates"),
    ],
)
def test_an_iterator_that_ends_too_early_or_too_late_is_refused_in_its_turn(
    number: int, sentence: str
) -> None:
    outputs = decode_many(
        DriftingModel(), [[1], [2], [3]], FixedSchedule(4), num_rows=1,
        templates=iter([[5]] * number), **SHORT,
    )  # fmt: skip
    answered = []
    with pytest.raises(ValueError, match=sentence):
        answered.extend(outputs)
    assert len(answered) == min(number, 3)


def test_an_empty_collection_leaves_everything_open() -> None:
    plain = decode(DriftingModel(), [[1], [2]], FixedSchedule(4), **SHORT)
    single = decode_many(DriftingModel(), [[1], [2]], FixedSchedule(4), templates=[], **SHORT)
    assert torch.equal(plain.tokens, torch.cat([one.tokens for one in single]))


def test_a_template_that_is_too_long_is_named_by_its_prompt() -> None:
    outputs = decode_many(
        DriftingModel(), [[1], [2], [3]], FixedSchedule(4), num_rows=1,
        templates=[[5], [5], [5] * 5], **SHORT,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"In row 2: .* at most gen_length=4 tokens, got 5"):
        list(outputs)

"""The choice among several lengths, temperatures and stop strings for a harness' task."""

from typing import Any

import pytest

from eval.lm_harness.generation import Generation


@pytest.mark.parametrize(
    ("options", "gen_length", "expected"),
    [
        ({}, 64, 64),
        ({"max_gen_toks": 1024}, 256, 256),
        ({"max_gen_toks": 1024, "gen_length": 33}, 256, 64),
        ({}, 1, 32),
    ],
)
def test_the_length_is_the_task_files_own_then_the_commands(
    options: dict[str, Any], gen_length: int, expected: int
) -> None:
    generation = Generation.of(options, gen_length=gen_length, block_length=32)
    assert generation.gen_length == expected


@pytest.mark.parametrize(
    ("options", "own", "expected"),
    [
        ({}, None, 0.0),
        ({"temperature": 0.7}, None, 0.7),
        ({"do_sample": True}, None, 1.0),
        ({"temperature": 0.7, "do_sample": False}, None, 0.0),
        ({"temperature": 0.7}, 0.2, 0.2),
        ({"do_sample": False}, 0.2, 0.2),
    ],
)
def test_the_temperature_is_the_models_then_the_tasks(
    options: dict[str, Any], own: float | None, expected: float
) -> None:
    assert Generation.of(options, block_length=32, temperature=own).temperature == expected


def test_options_without_effect_are_taken_where_they_are_neutral() -> None:
    neutral = {"num_beams": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1}
    assert Generation.of(neutral, block_length=8) == Generation.of({}, block_length=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.95}, "no top_p, got top_p=0.95 in the generation options; top_p=1 there says"),
        ({"stop": ["x"]}, r"Generation options are until, .*, got stop=\['x'\]"),
        ({"until": 3}, "until must be a text or a list of texts, got 3"),
        ({"until": [3]}, r"until must be a text or a list of texts, got \[3\]"),
        ({"temperature": "hot"}, "temperature must be a number from 0, got 'hot'"),
        ({"temperature": -1}, "temperature must be a number from 0, got -1"),
        ({"gen_length": 0}, "gen_length must be a whole number from 1, got 0"),
        ({"gen_length": 1.5}, "gen_length must be a whole number from 1, got 1.5"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Generation.of(options, block_length=32)

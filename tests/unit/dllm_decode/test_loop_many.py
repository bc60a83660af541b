"""Many prompts through few rows: each answer is what it would be in one batch with all."""

import inspect
from collections.abc import Iterator
from itertools import count
from typing import Any, Unpack

import pytest
import torch
from tiny_models import TINY_PROMPTS, ending, tiny
from toys import DriftingModel

from dllm_decode import (
    DecodeConfig,
    DualCache,
    RequestQueue,
    decode,
    decode_many,
    new_decoder,
    rounds,
)
from dllm_decode.options import DecodeOptions
from samplers import FixedSchedule

PROMPTS = [[1, 2, 3], [4]]


def test_rows_that_join_save_forwards_of_the_whole() -> None:
    model = ending("llada")
    options: Any = {"gen_length": 24, "block_length": 4, "cache": DualCache()}
    lengths = decode(model, TINY_PROMPTS, FixedSchedule(4), **options).lengths().tolist()
    assert len({-(-length // 4) for length in lengths}) > 2
    model.calls.clear()
    for start in range(0, len(TINY_PROMPTS), 2):
        decode(model, TINY_PROMPTS[start : start + 2], FixedSchedule(4), **options)
    in_batches = len(model.calls)
    model.calls.clear()
    list(decode_many(model, TINY_PROMPTS, FixedSchedule(4), num_rows=2, **options))
    assert len(model.calls) < in_batches
    assert max(len(call.tokens) for call in model.calls) == 2
    # A row that has just joined is open where the other is already further.
    depths = [call.positions[:, -1] for call in model.calls if len(call.tokens) == 2]
    assert any(len(set(ends.tolist())) == 2 for ends in depths)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_forward_over_everything_has_the_columns_of_its_longest_row(family: str) -> None:
    model = ending(family)
    options: Any = {"gen_length": 24, "block_length": 4}
    list(decode_many(model, TINY_PROMPTS, FixedSchedule(4), num_rows=3, **options))
    mixed = 0
    for call in model.calls:
        assert call.tokens.shape[1] <= max(map(len, TINY_PROMPTS)) + 24
        # Where one row is further than another, the canvas is longer than any of them.
        depths = call.positions.gather(1, call.wanted)[:, 0].tolist()
        mixed += call.tokens.shape[1] > 24 and len(set(depths)) > 1
    assert mixed


def test_prompts_are_taken_when_a_place_is_free_and_answers_given_when_it_is_their_turn() -> None:
    taken: list[int] = []

    def source() -> Iterator[list[int]]:
        for index in range(50):
            taken.append(index)
            yield [index % 20 + 1]

    outputs = decode_many(
        DriftingModel(), source(), FixedSchedule(4), num_rows=4, gen_length=4, block_length=4
    )
    assert not taken
    next(outputs)
    assert len(taken) == 4
    assert sum(1 for _ in outputs) == 49


def test_no_prompts_give_no_answers() -> None:
    assert not list(
        decode_many(DriftingModel(), [], FixedSchedule(4), gen_length=4, block_length=4)
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_rows": 0}, "num_rows must be at least 1, got 0"),
        ({"block_length": 9}, "block_length must be between 1 and gen_length=8"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_decoded(
    options: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        decode_many(DriftingModel(), PROMPTS, FixedSchedule(4), **{"gen_length": 8} | options)


def test_a_prompt_that_is_wrong_is_named() -> None:
    outputs = decode_many(
        DriftingModel(), [[1], [2], []], FixedSchedule(4), num_rows=1, gen_length=4, block_length=4
    )
    with pytest.raises(ValueError, match=r"In row 2: .*got an empty one"):
        list(outputs)


def test_the_settings_are_those_of_decode() -> None:
    one = inspect.signature(decode).parameters
    many = dict(inspect.signature(decode_many).parameters)
    assert many.pop("num_rows").kind is inspect.Parameter.KEYWORD_ONLY
    assert list(many) == list(one)
    assert [p.default for p in many.values()] == [p.default for p in one.values()]
    taken = {"prompts": "", "templates": ""}
    # By their text: each mention of a tensor's shape is a type of its own.
    assert {n: str(p.annotation) for n, p in many.items()} | taken == {
        n: str(p.annotation) for n, p in one.items()
    } | taken
    assert many["options"].annotation == Unpack[DecodeOptions]


def test_with_a_reserve_keys_and_values_are_allocated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of growing length in two rows; without a reserve they are copied."""
    decoder = new_decoder(
        tiny("sdar"), FixedSchedule(2), cache=DualCache(),
        config=DecodeConfig(gen_length=8, stop_at_eos=False),
    )  # fmt: skip
    prompts = [[5] * length for length in (3, 4, 9, 17, 30)]

    def tokens(**options: int) -> list[list[int]]:
        queue = RequestQueue(decoder.request(prompt, n) for n, prompt in enumerate(prompts))
        ended = [one for listed in rounds(decoder, queue, 2, **options) for one in listed]
        return [one.output.tokens[0].tolist() for one in sorted(ended, key=lambda e: e.request)]

    expected = tokens()

    def refuse(*_: object) -> None:
        raise AssertionError("Keys and values were copied.")

    monkeypatch.setattr("dllm_decode.models.base.pad", refuse)
    assert tokens(reserve=40) == expected
    with pytest.raises(AssertionError, match="were copied"):
        tokens()


# Templates


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

"""Many prompts through few rows: each answer is what it would be in one batch with all."""

import inspect
from collections.abc import Iterator
from typing import Any, Unpack

import pytest
import torch
from samplers_under_test import INSTANCES
from tiny_models import TINY_PROMPTS, ending, tiny
from toys import DriftingModel

from dllm_decode import (
    DecodeConfig,
    DecodeOutput,
    DualCache,
    RequestQueue,
    decode,
    decode_many,
    new_decoder,
    rounds,
)
from dllm_decode.options import DecodeOptions
from samplers import FixedSchedule

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12], [13], [2, 2, 2, 2], [14, 1, 5], [6, 3]]


def assert_same(whole: DecodeOutput, single: list[DecodeOutput], what: object) -> None:
    assert torch.equal(whole.tokens, torch.cat([one.tokens for one in single])), what
    assert torch.equal(whole.nfe, torch.cat([one.nfe for one in single])), what
    assert all(one.forwards == int(one.nfe) for one in single)


@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("sampler", INSTANCES, ids=repr)
def test_every_sampler_gives_each_prompt_the_answer_of_one_batch(sampler: Any) -> None:
    saved = 0
    for temperature, truncates in ((0.0, False), (0.7, True)):
        model = DriftingModel(eos_ids=(22, 3, 7, 11), peak=12.0)
        options: Any = {
            "gen_length": 14, "block_length": 4, "temperature": temperature, "seed": 1,
            "truncate_at_eos": truncates,
        }  # fmt: skip
        whole = decode(model, PROMPTS, sampler, **options)
        single = list(decode_many(model, iter(PROMPTS), sampler, num_rows=3, **options))
        assert_same(whole, single, (sampler, temperature))
        saved += len(set(whole.lengths().tolist())) > 1
    assert saved, "all answers are of one length, so that no row joined another"


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

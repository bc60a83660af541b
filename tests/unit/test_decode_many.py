"""Many prompts through few rows: each answer is what it would be in one batch with all."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drafted import DriftingModel, tiny_target
from samplers_under_test import INSTANCES
from spied import FAMILIES, Spied, tiny

from dllm_decode import (
    ARVerify,
    CachePolicy,
    DecodeOutput,
    DelayedCache,
    DualCache,
    FreeCache,
    Inputs,
    NoCache,
    PrefixCache,
    SelfVerify,
    decode,
    decode_many,
)
from samplers import ConfidenceThreshold, CreditDecoding, FixedSchedule, LocalLeap, Prophet

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12], [13], [2, 2, 2, 2], [14, 1, 5], [6, 3]]
TINY_PROMPTS = [
    [17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90], [3, 1], [62, 8, 400, 21],
    [200], [45, 46, 47, 48, 49, 50, 51],
]  # fmt: skip


class Counted(Spied):
    """Keeps its calls, without a ledger of slots, which would have to follow the rows."""

    def predict(self, inputs: Inputs) -> torch.Tensor:
        self.calls.append(inputs)
        return self.model.predict(inputs)


def ending(family: str) -> Counted:
    """A model that ends an answer with any of many tokens, so that answers end early."""
    model = Counted(tiny(family))
    model.eos_ids = (model.eos_ids[0], *range(0, 500, 12))
    return model


def assert_same(whole: DecodeOutput, single: list[DecodeOutput], what: object) -> None:
    assert torch.equal(whole.tokens, torch.cat([one.tokens for one in single])), what
    assert torch.equal(whole.nfe, torch.cat([one.nfe for one in single])), what
    assert all(one.forwards == int(one.nfe) for one in single)


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "cache",
    [
        NoCache(), PrefixCache(), DualCache(), DualCache(3, 1, 2), FreeCache("clean"),
        FreeCache("official"), DelayedCache(),
    ],
    ids=repr,
)  # fmt: skip
def test_every_cache_follows_rows_that_come_and_go(family: str, cache: CachePolicy) -> None:
    model = ending(family)
    for sampler, temperature in (
        (FixedSchedule(4), 0.0), (CreditDecoding(LocalLeap()), 0.8), (ConfidenceThreshold(0.4), 0.5)
    ):  # fmt: skip
        options: Any = {
            "gen_length": 20, "block_length": 8, "temperature": temperature, "cache": cache,
        }  # fmt: skip
        whole = decode(model, TINY_PROMPTS, sampler, **options)
        single = list(decode_many(model, TINY_PROMPTS, sampler, num_rows=3, **options))
        assert_same(whole, single, sampler)


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


@pytest.mark.parametrize("evaluate", ["batch", "tree"])
def test_self_verification_serves_rows_that_join(evaluate: Any) -> None:
    saved = 0
    for family, cache in (("llada", DualCache()), ("sdar", FreeCache()), ("dream", NoCache())):
        model = ending(family)
        options: Any = {"gen_length": 20, "block_length": 8, "cache": cache}
        whole = decode(model, TINY_PROMPTS, FixedSchedule(8), **options)
        single = list(
            decode_many(
                model, TINY_PROMPTS, FixedSchedule(8), num_rows=3,
                verifier=SelfVerify(3, evaluate), **options,
            )
        )  # fmt: skip
        assert torch.equal(whole.tokens, torch.cat([one.tokens for one in single]))
        saved += int(whole.nfe.sum()) - sum(one.forwards for one in single)
    assert saved > 0


@pytest.mark.parametrize(
    ("sampler", "verifier"),
    [(FixedSchedule(4), "target"), (Prophet(gap="all"), None), (Prophet(marker=(5,)), None)],
    ids=str,
)
def test_what_needs_the_whole_answer_goes_batch_by_batch(sampler: Any, verifier: Any) -> None:
    model = DriftingModel(eos_ids=(22, 3, 7, 11), peak=12.0)
    options: Any = {"gen_length": 12, "block_length": 4}
    if verifier is not None:
        options["verifier"] = ARVerify(tiny_target())
    whole = decode(model, PROMPTS, sampler, **options)
    single = list(decode_many(model, PROMPTS, sampler, num_rows=3, **options))
    assert torch.equal(whole.tokens, torch.cat([one.tokens for one in single]))


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
        ({"num_rows": 0}, "num_rows is at least 1, got 0"),
        ({"block_length": 9}, "block_length is between 1 and gen_length=8"),
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
    with pytest.raises(ValueError, match="got an empty one in row 2"):
        list(outputs)

"""Slots of the key-value cache that a row has not written are never read."""

from itertools import chain
from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, FEW
from tiny_models import FAMILIES, Spied, notes_of, tiny

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DualCache,
    MultiBlock,
    NoVerifier,
    SelfVerify,
    Sequential,
    SubBlocks,
    Verifier,
    decode,
)
from dllm_decode.compatibility import refusal_of
from dllm_decode.models.base import ForwardInputs

GEN_LENGTH = 18
PROMPTS = [
    [17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90], [3, 1], [62, 8, 400, 21],
]  # fmt: skip
WAYS: list[tuple[BlockSchedule, Verifier]] = [
    (Sequential(4), NoVerifier()),
    (Sequential(8), NoVerifier()),
    (MultiBlock(4), NoVerifier()),
    (AdaptiveBlocks(tuple(range(0, 512, 7)), 0.05, 4, 0.5), NoVerifier()),
    (SubBlocks(8, 3), NoVerifier()),
    (Sequential(4), SelfVerify(3, "batch")),
    (Sequential(4), SelfVerify(3, "tree")),
]
CASES = [
    pytest.param(family, cache, *way, id=f"{family}-{cache!r}-{way}")
    for family in FAMILIES
    for cache in CACHES
    for way in WAYS
    if refusal_of(tiny(family), FEW[0], cache, blocks=way[0], verifier=way[1]) is None
]
CASE = pytest.mark.parametrize(("family", "cache", "blocks", "verifier"), CASES)


def templates_for(mask: int) -> list[list[int]]:
    """Gives whole blocks: the first ones, one between two open ones, and the last ones."""
    given = list(range(11, 11 + GEN_LENGTH))
    return [[mask, 33], given[:12], [*[mask] * 5, *given[:9]], [*[mask] * 3, *given[3:]], []]


class Watched(Spied):
    """Asserts that no column sees a slot that was never written, and counts those not seen."""

    num_unwritten = 0

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        logits = super().predict(inputs)
        assert inputs.kv_cache is not None
        tokens, _ = notes_of(inputs.kv_cache)
        unwritten = (tokens == 0)[self.rows_of(inputs), None]
        self.num_unwritten += int(unwritten.sum())
        seen = unwritten if inputs.attend is None else unwritten & inputs.attend
        assert not seen.any()
        return logits


def answer(model: Any, **options: Any) -> Any:
    options = {"prompts": PROMPTS, "templates": templates_for(model.mask_id)} | options
    return decode(model, sampler=FEW[0], gen_length=GEN_LENGTH, stop_at_eos=False, **options)


@pytest.mark.exhaustive(14)
@CASE
def test_no_column_sees_a_slot_that_was_never_written(
    family: str, cache: CachePolicy, blocks: BlockSchedule, verifier: Verifier
) -> None:
    model = Watched(tiny(family))
    answer(model, cache=cache, blocks=blocks, verifier=verifier)
    assert model.calls


@pytest.mark.parametrize("family", FAMILIES)
def test_forwards_reach_slots_that_were_never_written(family: str) -> None:
    """Without such slots the law above says nothing."""
    model = Watched(tiny(family))
    answer(model, cache=DualCache(), blocks=Sequential(4))
    assert model.num_unwritten > 0


def test_the_law_covers_every_cache_family_and_schedule() -> None:
    found = set(chain.from_iterable(map(repr, case.values) for case in CASES))
    assert found >= {repr(one) for one in (*FAMILIES, *CACHES, *chain.from_iterable(WAYS))}

"""Slots of the key-value cache that a row has not written are never read."""

from itertools import chain
from typing import Any

import pytest
import torch
from samplers_under_test import FEW
from tiny_models import FAMILIES, Spied, notes_of, tiny

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    MultiBlock,
    NoVerifier,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    Sequential,
    SettledCache,
    SubBlockCache,
    SubBlocks,
    SuffixWindow,
    Verifier,
    decode,
    decode_many,
)
from dllm_decode.compatibility import refusal_of
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.base import ForwardInputs, KVCache

GEN_LENGTH = 18
PROMPTS = [
    [17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90], [3, 1], [62, 8, 400, 21],
]  # fmt: skip
CACHES: list[CachePolicy] = [
    PrefixCache(),
    PrefixCache(refresh_every=3),
    DualCache(),
    DualCache(refresh_every=3, before=2, after=3),
    DualCache(entry="official"),
    FreeCache("clean"),
    FreeCache("official"),
    DelayedCache(refresh_every=3, warm_up=1),
    SettledCache(1),
    SettledCache(2),
    PipelineCache(4, 1, 3),
    SubBlockCache(),
    SuffixWindow(PrefixCache(), 2),
    SuffixWindow(FreeCache(), 0),
    SuffixWindow(DelayedCache(refresh_every=3, warm_up=1), 1),
]
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
    return [
        [mask, 33],
        given[:12],
        [*[mask] * 5, *given[:9]],
        [*[mask] * 3, *given[3:]],
        [],
    ]


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


@pytest.mark.exhaustive(7)
@CASE
def test_noise_in_a_new_cache_changes_no_token(
    family: str,
    cache: CachePolicy,
    blocks: BlockSchedule,
    verifier: Verifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block that a template filled was once never computed, and read as zeros."""
    model = tiny(family)
    plugins: dict[str, Any] = {"cache": cache, "blocks": blocks, "verifier": verifier}
    plain = answer(model, **plugins)
    templates = templates_for(model.mask_id)
    alone = [
        answer(model, prompts=[prompt], templates=[template], **plugins)
        for prompt, template in zip(PROMPTS, templates, strict=True)
    ]
    num_noisy = make_noisy(monkeypatch)
    noisy = answer(model, **plugins)
    # Rows that join take the slots of rows that have left.
    many = decode_many(
        model, PROMPTS, FEW[0], num_rows=2, gen_length=GEN_LENGTH, stop_at_eos=False,
        templates=templates, **plugins,
    )  # fmt: skip
    assert torch.equal(noisy.tokens, plain.tokens)
    assert torch.equal(torch.cat([out.tokens for out in alone]), plain.tokens)
    assert torch.equal(torch.cat([out.tokens for out in many]), plain.tokens)
    assert len(num_noisy) == 2
    assert not (plain.tokens == model.mask_id).any()


def make_noisy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills new caches with random numbers; returns a list that grows by one for each."""
    zeroed, made = MaskedTransformer.new_kv_cache, list[int]()

    def noisy(self: MaskedTransformer, num_rows: int, num_slots: int) -> KVCache:
        kv_cache = zeroed(self, num_rows, num_slots)
        generator = torch.Generator().manual_seed(len(made))
        for buffer in kv_cache.buffers:
            buffer.copy_(3.0 * torch.randn(buffer.shape, generator=generator))
        made.append(num_slots)
        return kv_cache

    monkeypatch.setattr(MaskedTransformer, "new_kv_cache", noisy)
    return made


def test_the_law_covers_every_cache_family_and_schedule() -> None:
    found = set(chain.from_iterable(map(repr, case.values) for case in CASES))
    assert found >= {repr(one) for one in (*FAMILIES, *CACHES, *chain.from_iterable(WAYS))}

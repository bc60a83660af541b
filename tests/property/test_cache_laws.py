"""Laws of every cache policy, on tiny checkpoints in float64."""

from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, FEW, plugin
from tiny_models import FAMILIES, Spied, tiny

from dllm_decode import StepEvent, decode
from dllm_decode.blocks import MultiBlock, SubBlocks
from dllm_decode.caches import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
    SettledCache,
    SuffixWindow,
)
from samplers import Decision, FixedSchedule, Sampler, View, Wino
from samplers.facts import Fact
from samplers.logits.statistics import highest_one

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
EVERYTHING = [
    PrefixCache(refresh_every=1),
    DualCache(before=100, after=100),
    DelayedCache(refresh_every=1),
    SettledCache(1000),
    SuffixWindow(NoCache(), 1000),
]
FAMILY = pytest.mark.parametrize("family", FAMILIES)
SAMPLER = pytest.mark.parametrize("sampler", FEW, ids=repr)
POLICY = pytest.mark.parametrize("cache", CACHES, ids=repr)


def answer(
    model: Any, sampler: Sampler, cache: CachePolicy, *, prompts: Any = PROMPTS, **options: Any
) -> Any:
    blocks = {} if "blocks" in options else {"block_length": 4}
    options = {"gen_length": 10, "stop_at_eos": False} | blocks | options
    return decode(model, prompts, sampler, cache=cache, **options)


@pytest.mark.exhaustive(5)
@FAMILY
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (FEW[0], {"temperature": 1.0}), (FEW[1], {}),
        (FEW[0], {"blocks": SubBlocks(4, 1)}),
        (FEW[0], {"blocks": MultiBlock(4, 0.5, 0.5)}),
        (FEW[0], {"blocks": MultiBlock(4, 0.0, 0.5, forces="every")}),
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_that_computes_everything_is_no_cache(
    family: str, sampler: Sampler, options: dict[str, Any]
) -> None:
    exact = answer(tiny(family), sampler, NoCache(), **options)
    for cache in EVERYTHING:
        cached = answer(tiny(family), sampler, cache, **options)
        assert torch.equal(cached.tokens, exact.tokens), cache
        assert torch.equal(cached.nfe, exact.nfe)
        assert torch.equal(cached.query_positions, exact.query_positions)


@pytest.mark.exhaustive(12)
@SAMPLER
@pytest.mark.parametrize(("block_length", "stop_at_eos"), [(4, True), (8, False)])
def test_caching_is_exact_on_a_block_causal_model(
    sampler: Sampler, block_length: int, stop_at_eos: bool
) -> None:
    options: Any = {
        "gen_length": 21, "block_length": block_length, "stop_at_eos": stop_at_eos,
    }  # fmt: skip
    exact = answer(tiny("sdar"), sampler, NoCache(), **options)
    for cache in (PrefixCache(), DualCache(), FreeCache()):
        cached = answer(tiny("sdar"), sampler, cache, **options)
        assert torch.equal(cached.tokens, exact.tokens), cache
        assert torch.equal(cached.nfe, exact.nfe)
        assert (cached.query_positions < exact.query_positions).all()


@pytest.mark.exhaustive(10)
@FAMILY
@POLICY
def test_a_slot_holds_the_keys_of_the_token_it_was_computed_from(
    family: str, cache: CachePolicy
) -> None:
    model = Spied(tiny(family))
    answer(model, FEW[0], cache)
    (kv_cache,) = model.memories
    written = model.held >= 0
    keys = model.keys_of(model.held.clamp(min=0))
    same = torch.isclose(kv_cache.keys[0], keys, atol=1e-9).all(-1).all(1)
    assert written.any()
    assert torch.equal(same | ~written, torch.ones_like(written))
    assert (kv_cache.keys[0].transpose(1, 2)[~written] == 0).all()


@pytest.mark.parametrize(
    ("family", "sampler", "cache"),
    [*(("dream", FEW[0], cache) for cache in CACHES), ("llada", Wino(), NoCache())],
    ids=str,
)
def test_the_bill_is_what_the_model_was_given(
    family: str, sampler: Sampler, cache: CachePolicy
) -> None:
    model = Spied(tiny(family))
    # Without a cache, short rows are computed as wide as long ones, which is not on the bill.
    prompts = PROMPTS if cache.needs_kv_cache else PROMPTS[:1]
    bill = [0] * len(prompts)

    def watch(event: StepEvent) -> None:
        requests = event.requests.tolist()
        for inputs in model.calls[seen[-1] :]:
            all_rows = range(len(inputs.tokens))
            for row in model.rows_of(inputs).tolist() if inputs.kv_cache else all_rows:
                bill[requests[row]] += inputs.tokens.shape[1]
        seen.append(len(model.calls))

    seen = [0]
    out = answer(model, sampler, cache, prompts=prompts, observers=[watch])
    assert len(model.memories) == cache.needs_kv_cache, "the memory is allocated once a decode"
    assert out.forwards == len(model.calls)
    assert out.query_positions.tolist() == bill


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache(before=1), FreeCache()], ids=repr)
def test_columns_common_to_all_rows_take_the_cheap_path(cache: CachePolicy) -> None:
    model = Spied(tiny("dream"))
    prompts = [[5, 6, 7], [99, 8, 300], [12, 400, 444]]
    answer(model, FEW[0], cache, prompts=prompts, gen_length=12, block_length=12)
    assert all(isinstance(inputs.slots, slice) for inputs in model.calls)
    assert model.calls[0].rows is None
    partial = [inputs for inputs in model.calls if len(inputs.tokens) < len(prompts)]
    assert partial, "all rows ended together"
    assert all(isinstance(inputs.rows, slice) for inputs in partial)


def wavering(self: Any, view: View, state: torch.Tensor) -> tuple[Decision, torch.Tensor]:
    """Commits one token a step, but the third step re-masks all tokens of the block."""
    remask = ~view.masked & (state == 2)[:, None]
    return Decision(highest_one(view.confidence, view.eligible), remask=remask), state + 1


WAVERING = plugin(
    Sampler, step=wavering, gives=frozenset(),
    needs=frozenset({Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED, Fact.WHOLE_BLOCKS}),
    max_steps=lambda self, num_masks: num_masks + 3,
    init=lambda self, view: torch.zeros_like(view.tokens[:, 0]),
)  # fmt: skip


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    "cache", [one for one in CACHES if Fact.LOGITS_OF_COMMITTED in one.gives], ids=repr
)
def test_a_re_masked_column_is_computed_again_and_leaves_no_stale_keys(
    family: str, cache: CachePolicy
) -> None:
    model, sampler = Spied(tiny(family)), WAVERING
    taken_back: list[int] = []

    def count(event: StepEvent) -> None:
        taken_back.append(int((~event.before.masked & event.after.masked).sum()))
        assert not torch.isnan(event.view.confidence).any()
        if taken_back[-1]:
            return
        # Every masked column of the block was computed from [MASK] in this very forward.
        held = model.held[: len(event.rows)].gather(1, event.columns)
        assert event.view.masked.any()
        assert (held[event.view.masked] == model.mask_id).all()

    out = answer(model, sampler, cache, gen_length=8, observers=[count])
    assert sum(taken_back) > 0
    assert not (out.tokens == model.mask_id).any()


def test_what_a_block_causal_model_cannot_see_is_not_computed() -> None:
    model = Spied(tiny("sdar"))
    answer(model, FixedSchedule(2), FreeCache(), prompts=[[1, 2, 3, 4, 5]], gen_length=8)
    # The prompt's whole block is computed with the answer's first, then each block twice over:
    # while it is open, and once more in the first forward of the next.
    assert [inputs.tokens.shape[1] for inputs in model.calls] == [8, 4, 8, 4, 8, 4]
    assert [inputs.attend is None for inputs in model.calls] == [False, True] * 3

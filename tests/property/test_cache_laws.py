"""Laws of every cache policy, on tiny checkpoints in float64."""

from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, FEW, plugin
from pretended import Operations
from tiny_models import FAMILIES, Spied, tiny

from dllm_decode import StepEvent, decode
from dllm_decode.blocks import MultiBlock, SubBlocks
from dllm_decode.caches import (
    CachePolicy,
    CacheQuery,
    DelayedCache,
    DualCache,
    EntropyCache,
    FreeCache,
    History,
    NoCache,
    PrefixCache,
    SettledCache,
    SuffixWindow,
)
from dllm_decode.caches.history import LastLook
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns, ranges_of
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, View, Wino
from samplers.facts import Fact
from samplers.logits.statistics import highest_one

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
EVERYTHING = [
    PrefixCache(refresh_every=1),
    DualCache(before=100, after=100),
    DelayedCache(refresh_every=1),
    SettledCache(1000),
    SuffixWindow(NoCache(), 1000),
    EntropyCache(-1.0),
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
    is_equal = torch.isclose(kv_cache.keys[0], keys, atol=1e-9).all(-1).all(1)
    assert written.any()
    assert torch.equal(is_equal | ~written, torch.ones_like(written))
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
        requests = event.request_indices.tolist()
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
    "cache", [cache for cache in CACHES if Fact.LOGITS_OF_COMMITTED in cache.gives], ids=repr
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
        # Every masked column of the block was computed from [MASK] in this forward.
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


def masks_and_new(self: Any, query: CacheQuery) -> Columns:
    """Computes the masks of the block, and the tokens that were never computed as tokens."""
    numbers, (start, stop) = query.row.numbers.cache, query.block
    if not numbers:
        return columns((0, query.end))
    masks = {max(0, c - query.shift) for c in range(start, stop) if numbers[c] == 1}
    return ranges_of(sorted(masks | {c for c in range(query.end) if numbers[c] == 2}))


@FAMILY
def test_a_cache_that_is_never_in_doubt_computes_the_masks_of_the_block_and_new_tokens(
    family: str,
) -> None:
    def numbers(self: Any, canvas: Canvas, history: History, shift: int) -> torch.Tensor:
        is_mask = canvas.tokens == canvas.mask_id
        return is_mask + 2 * (history.pending(canvas) & ~is_mask & canvas.after_prompt)

    plain = plugin(CachePolicy, numbers=numbers, columns_to_compute=masks_and_new)
    expected = answer(tiny(family), FEW[0], plain)
    output = answer(tiny(family), FEW[0], EntropyCache(1e9, 0))
    assert torch.equal(output.tokens, expected.tokens)
    assert torch.equal(output.query_positions, expected.query_positions)
    everything = answer(tiny(family), FEW[0], NoCache()).query_positions
    assert output.query_positions.sum() < everything.sum()


@pytest.mark.parametrize(
    ("family", "sampler"),
    [("llada", FEW[0]), ("llada", WAVERING), ("dream", WAVERING), ("sdar", FEW[0])],
    ids=str,
)
def test_the_last_look_is_that_of_the_forward_that_predicted_a_mask(
    family: str, sampler: Sampler
) -> None:
    histories: list[History] = []
    cache = plugin(
        CachePolicy,
        numbers=lambda self, canvas, history, shift: histories.append(history),
        columns_to_compute=lambda self, query: columns((0, query.end)),
        needs=frozenset({Fact.LAST_LOOK}), gives=frozenset({Fact.LOGITS_OF_COMMITTED}),
    )  # fmt: skip
    seen = 0

    def compare(event: StepEvent) -> None:
        nonlocal seen
        look = histories[-1].last_look
        for row in range(len(event.rows)):
            place, masked = event.columns[row], event.view.masked[row]
            for noted, shown, blank in (
                (look.confidence[row], event.view.confidence[row], 1.0),
                (look.entropy[row], event.view.entropy[row], 0.0),
            ):
                others = torch.ones_like(noted, dtype=torch.bool)
                others[place[masked]] = False
                assert torch.equal(noted[place[masked]], shown[masked].float())
                assert (noted[others] == blank).all(), "tokens, and masks of no look"
            seen += int(masked.sum())

    answer(tiny(family), sampler, cache, gen_length=8, observers=[compare])
    assert seen > 20


def test_a_cache_that_reads_a_look_it_does_not_need_is_told_so() -> None:
    cache = plugin(
        CachePolicy, numbers=lambda self, canvas, history, shift: history.last_look,
        columns_to_compute=lambda self, query: columns((0, query.end)),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"must have Fact\.LAST_LOOK, got none"):
        answer(tiny("llada"), FEW[0], cache)


def test_no_cache_that_reads_looks_claims_that_forwards_can_be_replayed() -> None:
    reading = [cache for cache in CACHES if Fact.LAST_LOOK in cache.needs]
    assert len(reading) > 3
    assert not any(Fact.EXACT_REPLAY in cache.gives for cache in reading)


def test_the_last_look_costs_a_few_operations_a_round_and_others_none() -> None:
    def number_of(cache: CachePolicy) -> tuple[int, int]:
        operations: list[str] = []
        with Operations(lambda func, inputs, result: operations.append(str(func))):
            out = answer(tiny("llada"), ConfidenceThreshold(1.0), cache)
        return len(operations), out.forwards

    def everything(**needs: Any) -> CachePolicy:
        policy: CachePolicy = plugin(
            CachePolicy, columns_to_compute=lambda self, query: columns((0, query.end)),
            numbers=lambda self, canvas, history, shift: None, **needs,
        )  # fmt: skip
        return policy

    silent, rounds = number_of(everything())
    looks, _ = number_of(everything(needs=frozenset({Fact.LAST_LOOK})))
    # The entropy, which the sampler does not need, two written values, and the places of tokens.
    assert 0 < looks - silent <= 60 * rounds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LastLook, "after", None)
        assert number_of(everything()) == (silent, rounds)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_sampler_that_sees_the_suffix_makes_the_block_of_a_cache_as_wide(family: str) -> None:
    """An outsider took it for a fault that `DualCache` then computes what `PrefixCache` does."""
    wide = plugin(
        ConfidenceThreshold, scope="suffix",
        needs=ConfidenceThreshold().needs | {Fact.LOGITS_OF_COMMITTED},
    )  # fmt: skip
    narrow = answer(tiny(family), ConfidenceThreshold(), DualCache())
    prefix, dual = (answer(tiny(family), wide, cache) for cache in (PrefixCache(), DualCache()))
    assert torch.equal(dual.tokens, prefix.tokens)
    assert torch.equal(dual.query_positions, prefix.query_positions)
    assert (dual.query_positions > narrow.query_positions).all()

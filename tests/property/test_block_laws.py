"""Laws of block schedules over samplers and caches, on tiny checkpoints in float64."""

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, INSTANCES
from tiny_models import FAMILIES, tiny

from dllm_decode import StepEvent, decode
from dllm_decode.blocks import AdaptiveBlocks, BlockSchedule, MultiBlock, Sequential, SlidingWindow
from dllm_decode.caches import CachePolicy, CertaintyCache, DualCache, FreeCache, NoCache
from samplers import ConfidenceThreshold, CreditDecoding, Sampler
from samplers.facts import Fact

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
# With this many delimiters, most windows predict one.
DELIMITERS = tuple(range(0, 512, 7))
# Each decodes like blocks of 4, one after another.
LIKE_SEQUENTIAL: list[BlockSchedule] = [MultiBlock(4, 1.0, 1.0), AdaptiveBlocks((), 0.0, 4)]
STEPWISE = [sampler for sampler in INSTANCES if Fact.WHOLE_BLOCKS not in sampler.needs]
STATEFUL = CreditDecoding(ConfidenceThreshold(0.6))


def answer(family: str, sampler: Sampler, blocks: BlockSchedule, **options: Any) -> Any:
    model = tiny(family)
    length = model.causal_block_length
    if length and (Fact.SEES_BOTH_WAYS in blocks.needs or (blocks.block_length or 0) % length):
        pytest.skip("its blocks have one length")
    options = {"prompts": PROMPTS, "gen_length": 14, "stop_at_eos": False, **options}
    return decode(model, options.pop("prompts"), sampler, blocks=blocks, **options)


LIKE = [
    *((sampler, NoCache(), "llada") for sampler in (*STEPWISE, STATEFUL)),
    *((sampler, cache, family) for sampler in (ConfidenceThreshold(0.6), STATEFUL)
      for cache in CACHES for family in FAMILIES),
]  # fmt: skip


@pytest.mark.exhaustive(12)
@pytest.mark.parametrize("blocks", LIKE_SEQUENTIAL, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("sampler", "cache", "family"), LIKE, ids=str)
def test_opening_and_forcing_at_the_end_of_a_block_is_one_block_after_another(
    sampler: Sampler, cache: CachePolicy, family: str, temperature: float, blocks: BlockSchedule
) -> None:
    # With a cache, each prompt is decoded alone.
    for prompts in (PROMPTS,) if cache == NoCache() else ([prompt] for prompt in PROMPTS):
        plain, several = (
            answer(family, sampler, schedule, prompts=prompts, cache=cache, temperature=temperature)
            for schedule in (Sequential(4), blocks)
        )
        assert torch.equal(several.tokens, plain.tokens)
        assert torch.equal(several.nfe, plain.nfe)
        assert torch.equal(several.query_positions, plain.query_positions)


@pytest.mark.parametrize(
    ("blocks", "like", "caches"),
    [
        (SlidingWindow(14, 14), Sequential(14), (NoCache(),)),
        (SlidingWindow(4, 4, "block", 4), Sequential(4), (NoCache(), DualCache(), FreeCache())),
    ],
    ids=["answer", "block"],
)
def test_a_window_as_long_as_a_block_is_this_block(
    blocks: SlidingWindow, like: Sequential, caches: Sequence[CachePolicy]
) -> None:
    families = ("llada", "sdar") if blocks.within == "block" else ("llada", "dream")
    for cache, family in product(caches, families):
        plain, sliding = (
            answer(family, ConfidenceThreshold(0.6), schedule, prompts=PROMPTS[:1], cache=cache)
            for schedule in (like, blocks)
        )
        assert torch.equal(sliding.tokens, plain.tokens)
        assert torch.equal(sliding.query_positions, plain.query_positions)


def test_caches_compute_everything_when_a_window_of_tokens_is_committed() -> None:
    events: list[StepEvent] = []
    answer(
        "llada", ConfidenceThreshold(1.0), SlidingWindow(4, 8), prompts=PROMPTS[:1],
        cache=DualCache(), observers=[events.append],
    )  # fmt: skip
    began = [n for n, event in enumerate(events) if event.rows[0].period_forwards == 1]
    assert began == [0, 4, 8, 12]


def test_a_given_delimiter_ends_a_block() -> None:
    mask, events = tiny("llada").mask_id, list[StepEvent]()
    template = [mask, mask, DELIMITERS[3], *[mask] * 11]
    answer(
        "llada", ConfidenceThreshold(1.0), AdaptiveBlocks(DELIMITERS, 1.0, 8), prompts=PROMPTS[:1],
        templates=[template], observers=[events.append],
    )  # fmt: skip
    first = len(PROMPTS[0])
    gained = [int((e.before.masked & ~e.after.masked)[0].nonzero()) for e in events]
    assert set(gained[:2]) == {first, first + 1}


def test_nothing_opens_behind_an_eos_where_the_answer_ends_with_it() -> None:
    mask, eos = tiny("llada").mask_id, tiny("llada").eos_ids[0]
    template = [mask] * 2 + [eos] + [mask] * 11
    seen = {}
    for stops in (True, False):
        events: list[StepEvent] = []
        answer(
            "llada", ConfidenceThreshold(1.0), MultiBlock(4, 0.0, 0.0), prompts=PROMPTS[:1],
            templates=[template], stop_at_eos=stops, observers=[events.append],
        )  # fmt: skip
        (rows,) = zip(*(event.rows for event in events), strict=True)
        seen[stops] = max(row.opening.stop - row.blocks_start for row in rows)
    assert seen == {True: 4, False: 14}


@pytest.mark.parametrize("num_masks", [1, 2])
def test_adaptive_blocks_leave_a_column_that_a_cache_computes(num_masks: int) -> None:
    """A look at few columns may have none before the first delimiter."""
    model, drawn = tiny("dream"), Random(0)
    template = [[drawn.choice((model.mask_id, 7)) for _ in range(16)] for _ in PROMPTS]
    out = answer(
        "dream", ConfidenceThreshold(0.9), AdaptiveBlocks((7, 40), 0.2, 2), templates=template,
        cache=CertaintyCache(num_masks), gen_length=16,
    )  # fmt: skip
    assert (out.tokens != model.mask_id).all()

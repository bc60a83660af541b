"""Caches that commit a block's first token in the block's first step, as official code does."""

from typing import Any

import pytest
import torch
from tiny_models import load_tiny
from toys import tiny_target

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DualCache,
    Guided,
    MultiBlock,
    PrefixCache,
    StepEvent,
    SubBlocks,
    SuffixWindow,
    decode,
    decode_many,
)
from dllm_decode.models import MaskedTransformer
from samplers import ConfidenceThreshold, CreditDecoding, FixedSchedule, QuotaThreshold, Sampler

CACHES = [
    PrefixCache(entry="official"),
    DualCache(entry="official"),
    DualCache(3, entry="official"),
    # Did not commit the token, and then left out what predicts it: an error in the second step.
    SuffixWindow(PrefixCache(entry="official"), 2),
]
DREAM, LLADA = load_tiny("dream", dtype=torch.float64), load_tiny("llada", dtype=torch.float64)
PROMPTS = [[1, 2, 3], [4], [5, 6]]
OPTIONS: Any = {"gen_length": 8, "block_length": 4, "stop_at_eos": False}
SAMPLERS: list[Sampler] = [
    ConfidenceThreshold(0.5),
    FixedSchedule(2, "entropy", "dream"),
    CreditDecoding(ConfidenceThreshold(0.6)),
    QuotaThreshold(0.5, 3),
]


def first_commits(model: MaskedTransformer, sampler: Sampler, **options: Any) -> list[list[int]]:
    """Returns the positions that row 0 commits in each step."""
    steps: list[list[int]] = []

    def watch(event: StepEvent) -> None:
        changed = event.before.masked & ~event.after.masked
        for index in (event.requests == 0).nonzero().flatten().tolist():
            columns = changed[index].nonzero().flatten()
            steps.append((columns - len(PROMPTS[0])).tolist())

    decode(model, PROMPTS, sampler, observers=[watch], **OPTIONS, **options)
    return steps


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("cache", CACHES, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_block_begins_with_its_first_token_alone(sampler: Sampler, cache: PrefixCache) -> None:
    model = DREAM
    steps = first_commits(model, sampler, cache=cache)
    for start in (0, 4):
        of_block = [step for step in steps if start <= step[0] < start + 4]
        assert of_block[0] == [start]
        assert sorted(at for step in of_block for at in step) == list(range(start, start + 4))
    alone = [decode(model, [prompt], sampler, cache=cache, **OPTIONS) for prompt in PROMPTS]
    together = decode(model, PROMPTS, sampler, cache=cache, **OPTIONS)
    many = list(decode_many(model, PROMPTS, sampler, num_rows=2, cache=cache, **OPTIONS))
    for row, one in enumerate(alone):
        assert torch.equal(one.tokens[0], together.tokens[row])
        assert torch.equal(one.tokens[0], many[row].tokens[0])


def test_only_a_model_that_predicts_the_next_column_has_such_an_entry() -> None:
    model = LLADA
    ours, plain = PrefixCache(entry="official"), PrefixCache()
    for sampler in SAMPLERS:
        assert first_commits(model, sampler, cache=ours) == first_commits(
            model, sampler, cache=plain
        )


@pytest.mark.parametrize("cache", CACHES, ids=repr)
@pytest.mark.parametrize("blocks", [MultiBlock(4), SubBlocks(4, 2)], ids=repr)
def test_schedules_that_open_parts_are_refused(blocks: BlockSchedule, cache: CachePolicy) -> None:
    """Only the first block of an answer had its first token committed alone, or columns lacked."""
    options: Any = {**OPTIONS, "block_length": None, "cache": cache, "blocks": blocks}
    with pytest.raises(ValueError, match=r"a block schedule that opens all masks .*, got"):
        decode(DREAM, PROMPTS, ConfidenceThreshold(0.5), **options)


def test_a_given_first_token_is_no_entry() -> None:
    model = DREAM
    mask = model.mask_id
    template = [7, mask, mask, mask, mask, mask, mask, mask]
    options = {"cache": PrefixCache(entry="official"), "templates": [template] * 3}
    steps = first_commits(model, FixedSchedule(1), **options)
    # The schedule's one step was the entry, so what is left goes in the next.
    assert steps == [[1, 2, 3], [4], [5, 6, 7]]


def test_a_target_that_decides_refuses_an_entry() -> None:
    model = DREAM
    with pytest.raises(ValueError, match="lets the sampler decide every step, got Guided"):
        decode(model, [[1]], FixedSchedule(), cache=CACHES[0], verifier=Guided(tiny_target(512)))

"""Caches that commit a block's first token in the block's first step, as official code does."""

from typing import Any

import torch
from tiny_models import load_tiny

from dllm_decode import PrefixCache, StepEvent, decode
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule, QuotaThreshold, Sampler

DREAM, LLADA = load_tiny("dream", dtype=torch.float64), load_tiny("llada", dtype=torch.float64)
PROMPTS = [[1, 2, 3], [4], [5, 6]]
OPTIONS: Any = {"gen_length": 8, "block_length": 4, "stop_at_eos": False}


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


def test_only_a_model_that_predicts_the_next_column_has_such_an_entry() -> None:
    for sampler in (FixedSchedule(2, "entropy", "dream"), QuotaThreshold(0.5, 3)):
        official = first_commits(LLADA, sampler, cache=PrefixCache(entry="official"))
        assert official == first_commits(LLADA, sampler, cache=PrefixCache())


def test_a_given_first_token_is_no_entry() -> None:
    template = [7, *[DREAM.mask_id] * 7]
    options = {"cache": PrefixCache(entry="official"), "templates": [template] * 3}
    steps = first_commits(DREAM, FixedSchedule(1), **options)
    # The schedule's one step was the entry, so what is left goes in the next.
    assert steps == [[1, 2, 3], [4], [5, 6, 7]]

"""A model whose blocks choose experts together: a forward computes whole blocks, or none."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins_under_test import CACHES
from tiny_models import Spied, load_tiny, load_without_tokenizer

from dllm_decode import (
    S2D2,
    CachePolicy,
    FreeCache,
    MultiBlock,
    NoCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SubBlockCache,
    SubBlocks,
    decode,
)
from dllm_decode.core.columns import columns, in_whole_blocks
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.verify import ScoreThreshold
from samplers import T2M, ConfidenceThreshold

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
BLOCK = 8


@cache
def model() -> MaskedTransformer:
    return load_tiny("llada2_2_moe", dtype=torch.float64)


class Whole(Spied):
    """Checks that each call computes whole blocks."""

    routing_block_length = BLOCK

    def predict(self, inputs: Any) -> torch.Tensor:
        assert inputs.tokens.shape[1] % BLOCK == 0
        starts = inputs.positions[:, ::BLOCK]
        assert not (starts % BLOCK).any()
        blocks = inputs.positions.unflatten(1, (-1, BLOCK))
        assert torch.equal(blocks, starts[..., None] + torch.arange(BLOCK))
        return super().predict(inputs)


def answers(prompts: list[list[int]] = PROMPTS, **options: Any) -> torch.Tensor:
    plain = {"gen_length": 12, "stop_at_eos": False, "sampler": ConfidenceThreshold(0.1)}
    return decode(Whole(model()), prompts, **plain | options).tokens


def test_blocks_are_widened_and_joined() -> None:
    parts = columns((3, 5), (6, 7), (15, 17))
    assert in_whole_blocks(parts, 4) == columns((0, 8), (12, 20))
    assert in_whole_blocks(parts, 1) == columns((3, 5), (6, 7), (15, 17))


@pytest.mark.parametrize("cache_policy", CACHES, ids=repr)
def test_every_policy_is_exact_on_whole_blocks(cache_policy: CachePolicy) -> None:
    together = answers(cache=cache_policy)
    assert torch.equal(together, answers())
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(answers([prompt], cache=cache_policy)[0], together[row])


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": SubBlocks(BLOCK, 4), "cache": SubBlockCache()},
        {"blocks": MultiBlock(BLOCK, 0.3, 0.9), "cache": SettledCache()},
        {"verifier": SelfVerify(2), "cache": FreeCache()},
        {"verifier": S2D2(ScoreThreshold(-5)), "cache": FreeCache()},
        {"sampler": T2M(), "cache": PrefixCache()},
    ],
    ids=str,
)
def test_schedules_and_verifiers_compute_whole_blocks(options: dict[str, Any]) -> None:
    together = answers(**options)
    assert torch.equal(together, answers(**options | {"cache": NoCache()}))
    # S2D2 draws, and the noise of a row depends on its number.
    assert torch.equal(answers(PROMPTS[:1], **options)[0], together[0])


def test_longer_blocks_are_whole_blocks_and_shorter_ones_are_refused(tmp_path: Path) -> None:
    save_model(load_tiny("llada2_2_moe", block_length=16), tmp_path)
    saved, _ = load_without_tokenizer(tmp_path, mask_id=508)
    assert (saved.causal_block_length, saved.routing_block_length) == (16, 8)
    with pytest.raises(ValueError, match=r"block_length must be a multiple of 8, .* got 12"):
        load_tiny("llada2_2_moe", block_length=12)

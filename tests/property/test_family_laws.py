"""Every family through the engine, against a loop that shares nothing with it."""

import pytest
import reference
import torch
from tiny_models import EVERY_FAMILY, LAW_OPTIONS, load_tiny, tiny

from dllm_decode import FreeCache, NoCache, decode
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444]]
GEN_LENGTH, BLOCK_LENGTH = 10, 4
OPTIONS = {"gen_length": GEN_LENGTH, "block_length": BLOCK_LENGTH, "stop_at_eos": False}
EVERY = pytest.mark.parametrize("family", EVERY_FAMILY)


def by_the_plain_loop(model: MaskedTransformer, prompt: list[int]) -> list[int]:
    """Commits the most confident position of the open block, until nothing is masked."""
    asked = reference.Asked(
        look=reference.Looks(model), mask_id=model.mask_id, eos_ids=model.eos_ids,
        banned=frozenset((model.mask_id, *model.banned_ids)), align=model.causal_block_length or 1,
    )  # fmt: skip
    row = reference.Row(prompt=prompt, gen_length=GEN_LENGTH, block_length=BLOCK_LENGTH)
    return reference.decode(asked, row, reference.fixed_rule(BLOCK_LENGTH)).tokens


@EVERY
def test_one_token_a_step_is_the_plain_loop(family: str) -> None:
    model = tiny(family)
    out = decode(model, PROMPTS, FixedSchedule(BLOCK_LENGTH), cache=NoCache(), **OPTIONS)
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == by_the_plain_loop(model, prompt)


def test_all_four_kinds_of_attention_and_shift_are_among_the_families() -> None:
    kinds = {
        (tiny(family).logit_shift, tiny(family).causal_block_length > 0) for family in EVERY_FAMILY
    }
    assert len(kinds) == 4
    assert all(LAW_OPTIONS[family].get("block_length", 4) == 4 for family in EVERY_FAMILY)


@pytest.mark.parametrize("family", ["a2d_qwen3", "a2d_llama"])
def test_an_a2d_model_may_be_block_causal(family: str) -> None:
    model = load_tiny(family, dtype=torch.float64, block_length=4)
    sampler = FixedSchedule(BLOCK_LENGTH)
    for cache in (NoCache(), FreeCache("clean")):
        out = decode(model, PROMPTS, sampler, cache=cache, **OPTIONS)
        for row, prompt in enumerate(PROMPTS):
            assert out.tokens[row].tolist() == by_the_plain_loop(model, prompt)

"""Laws of `decode` over random ragged batches, block lengths and temperatures."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from samplers_under_test import INSTANCES
from toys import HashModel

from dllm_decode import decode
from samplers import Sampler

PROMPTS = st.lists(st.lists(st.integers(0, 22), min_size=1, max_size=9), min_size=2, max_size=4)


@pytest.mark.parametrize("causal_block_length", [0, 4])
@settings(max_examples=25)
@given(
    sampler=st.sampled_from(INSTANCES),
    prompts=PROMPTS,
    gen_length=st.integers(4, 13),
    logit_shift=st.integers(0, 1),
    temperature=st.sampled_from([0.0, 1.0]),
    stop_at_eos=st.booleans(),
)
def test_a_batch_is_decoded_as_each_row_alone(
    causal_block_length: int,
    sampler: Sampler,
    prompts: list[list[int]],
    gen_length: int,
    logit_shift: int,
    temperature: float,
    stop_at_eos: bool,
) -> None:
    # A sampler that re-masks is refused by other models.
    assume(not sampler.leave_one_out or not (logit_shift or causal_block_length))
    model = HashModel(
        eos_ids=(3, 7, 11, 15),
        logit_shift=logit_shift,
        causal_block_length=causal_block_length,
        peak=12.0,
    )
    options = {
        "gen_length": gen_length,
        "block_length": 4,
        "temperature": temperature,
        "stop_at_eos": stop_at_eos,
    }
    together = decode(model, prompts, sampler, **options)  # type: ignore[arg-type]
    for row, prompt in enumerate(prompts):
        # The row's place in the batch keys its noise, so it keeps that place beside copies.
        alone = decode(model, [prompt] * (row + 1), sampler, **options)  # type: ignore[arg-type]
        assert torch.equal(alone.tokens[row], together.tokens[row])
        assert alone.nfe[row] == together.nfe[row]
    assert not (together.tokens == model.mask_id).any()


def test_every_sampler_ends_on_a_model_that_wants_to_say_mask() -> None:
    model = HashModel()
    original = model.predict

    def says_mask(inputs):  # type: ignore[no-untyped-def]
        logits = original(inputs)
        logits[..., model.mask_id] = 100.0
        return logits

    model.predict = says_mask  # type: ignore[method-assign]
    for sampler in INSTANCES:
        out = decode(model, [[1], [2, 3]], sampler, gen_length=8, block_length=4, stop_at_eos=False)
        assert not (out.tokens == model.mask_id).any()

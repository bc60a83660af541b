"""Laws of `decode` that hold for the logits of any model."""

import pytest
from plugins_under_test import INSTANCES, one_of_each_kind
from toys import HashModel

from dllm_decode import decode
from samplers import Sampler


@pytest.mark.parametrize("sampler", one_of_each_kind(INSTANCES))
def test_every_sampler_ends_on_a_model_that_wants_to_say_mask(sampler: Sampler) -> None:
    model = HashModel()
    original = model.predict

    def says_mask(inputs):  # type: ignore[no-untyped-def]
        logits = original(inputs)
        logits[..., model.mask_id] = 100.0
        return logits

    model.predict = says_mask  # type: ignore[method-assign]
    out = decode(model, [[1], [2, 3]], sampler, gen_length=8, block_length=4, stop_at_eos=False)
    assert not (out.tokens == model.mask_id).any()

"""Fast-dLLM v2 1.5B and 7B: Qwen2.5, block-causal, and the prediction is shifted.

Source: Wu et al. 2025, "Fast-dLLM v2", https://arxiv.org/abs/2509.26328.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, REFUSALS, read_shape

FAST_DLLM_V2 = Family(
    name="Fast-dLLM v2",
    architecture="Fast_dLLM_QwenForCausalLM",
    names=NAMES,
    read_shape=partial(read_shape, qkv_bias=True),
    refusals=REFUSALS,
    mask_id=151665,
    eos_id=151645,
    end_of_turn_ids=(151645,),
    logit_shift=1,
    block_length=32,
    block_keys=("bd_size",),
)

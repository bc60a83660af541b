"""A2D models made of Qwen3, such as Qwen3-0.6B-diffusion-mdlm and -bd3lm.

One architecture for two recipes that config.json does not tell apart: mdlm models attend in both
directions, which is assumed; bd3lm models are block-causal, which `block_length=32` says.
Source: dLLM, https://github.com/ZHZisZZ/dllm.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, NO_BIAS, REFUSALS, read_shape

A2D_QWEN3 = Family(
    name="A2D-Qwen3",
    architecture="A2DQwen3LMHeadModel",
    names=NAMES,
    read_shape=partial(read_shape, qk_norm=True),
    refusals=(*REFUSALS, NO_BIAS),
    # The first id that Qwen3's tokenizer has left; a tokenizer's own word is taken first.
    mask_id=151669,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    may_be_block_causal=True,
    is_causal_too=True,
)

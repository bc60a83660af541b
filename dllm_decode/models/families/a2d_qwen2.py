"""A2D models made of Qwen2.5, such as Qwen2.5-Coder-0.5B-diffusion-mdlm and -bd3lm.

As `a2d_qwen3`: `block_length=32` says that a model is block-causal.
Source: dLLM, https://github.com/ZHZisZZ/dllm.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, REFUSALS, read_shape

A2D_QWEN2 = Family(
    name="A2D-Qwen2",
    architecture="A2DQwen2LMHeadModel",
    names=NAMES,
    read_shape=partial(read_shape, qkv_bias=True),
    refusals=REFUSALS,
    mask_id=151665,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    may_be_block_causal=True,
    is_causal_too=True,
)

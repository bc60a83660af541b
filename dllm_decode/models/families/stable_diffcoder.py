"""Stable-DiffCoder-8B Base and Instruct: Llama, block-causal.

Source: ByteDance Seed 2026, https://github.com/ByteDance-Seed/Stable-DiffCoder.
"""

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.shared import NAMES, NO_BIAS, NO_MLP_BIAS, read_shape

STABLE_DIFFCODER = Family(
    name="Stable-DiffCoder",
    architecture="StableDiffcoderForCausalLM",
    names=NAMES,
    read_shape=read_shape,
    refusals=(Refusal("hidden_act", ("silu",), "to be 'silu'"), NO_BIAS, NO_MLP_BIAS),
    mask_id=5,
    eos_id=2,
    block_length=4,
    block_keys=("block_size",),
    fast_tokenizer=True,
)

"""A2D models made of Llama.

As `a2d_qwen3`: `block_length=32` says that a model is block-causal. No default of the mask token is
known: a tokenizer says it, or the caller.
Source: dLLM, https://github.com/ZHZisZZ/dllm.
"""

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.shared import NAMES, NO_BIAS, NO_MLP_BIAS, read_shape

A2D_LLAMA = Family(
    name="A2D-Llama",
    architecture="A2DLlamaLMHeadModel",
    names=NAMES,
    read_shape=read_shape,
    refusals=(Refusal("hidden_act", ("silu",), "to be 'silu'"), NO_BIAS, NO_MLP_BIAS),
    mask_id=None,
    eos_id=None,
    end_of_turn_ids=(128009,),
    may_be_block_causal=True,
    fast_tokenizer=True,
    is_causal_too=True,
)

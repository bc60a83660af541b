"""Families without experts: Qwen2, Qwen3, Llama and Ministral turned into diffusion models."""

from dataclasses import replace
from functools import partial

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.transformers_format import (
    NAMES,
    NO_BIAS,
    NO_MLP_BIAS,
    NO_WINDOW,
    REFUSALS,
    SILU,
    read_shape,
)

# Qwen's end of a text and end of a turn. The [MASK] token is the first id that the tokenizer of
# Qwen2.5 or Qwen3 leaves free.
_QWEN2 = Family(
    name="Qwen2",
    architecture="Qwen2ForCausalLM",
    names=NAMES,
    read_shape=partial(read_shape, qkv_bias=True),
    refusals=REFUSALS,
    mask_id=151665,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
)
_QWEN3 = replace(
    _QWEN2,
    read_shape=partial(read_shape, qk_norm=True),
    refusals=(*REFUSALS, NO_BIAS),
    mask_id=151669,
)
_LLAMA = replace(
    _QWEN2,
    read_shape=read_shape,
    refusals=(SILU, NO_BIAS, NO_MLP_BIAS),
    mask_id=None,
    eos_id=None,
    end_of_turn_ids=(),
    fast_tokenizer=True,
)

DENSE = {
    # Dream 7B Base and Instruct; Dream-Coder, DiffuCoder, d3LLM's and dParallel's Dream weights.
    # Source: Ye et al. 2025, "Dream 7B", https://arxiv.org/abs/2508.15487.
    "dream": replace(
        _QWEN2, name="Dream", architecture="DreamModel", mask_id=151666, logit_shift=1
    ),
    # SDAR 1.7B, 4B and 8B, and TraDo: block-causal Qwen3.
    # Source: Cheng et al. 2025, "SDAR", https://arxiv.org/abs/2510.06303.
    "sdar": replace(
        _QWEN3,
        name="SDAR",
        architecture="SDARForCausalLM",
        read_shape=partial(read_shape, qk_norm=True, norm_weight_in_float32=True),
        block_length=4,
        block_keys=("block_size",),
    ),
    # Fast-dLLM v2 1.5B and 7B: block-causal Qwen2.5.
    # Source: Wu et al. 2025, "Fast-dLLM v2", https://arxiv.org/abs/2509.26328.
    "fast_dllm_v2": replace(
        _QWEN2,
        name="Fast-dLLM v2",
        architecture="Fast_dLLM_QwenForCausalLM",
        eos_id=151645,
        end_of_turn_ids=(151645,),
        logit_shift=1,
        block_length=32,
        block_keys=("bd_size",),
    ),
    # A2D models, one architecture for two recipes that config.json does not tell apart: mdlm models
    # attend in both directions, which is assumed; for bd3lm models, which are block-causal, pass
    # block_length=32.
    # Source: dLLM, https://github.com/ZHZisZZ/dllm.
    "a2d_qwen3": replace(
        _QWEN3,
        name="A2D-Qwen3",
        architecture="A2DQwen3LMHeadModel",
        may_be_block_causal=True,
        is_causal_too=True,
    ),
    "a2d_qwen2": replace(
        _QWEN2,
        name="A2D-Qwen2",
        architecture="A2DQwen2LMHeadModel",
        may_be_block_causal=True,
        is_causal_too=True,
    ),
    # No default of the mask token is known: the tokenizer or the caller names it.
    "a2d_llama": replace(
        _LLAMA,
        name="A2D-Llama",
        architecture="A2DLlamaLMHeadModel",
        end_of_turn_ids=(128009,),
        may_be_block_causal=True,
        is_causal_too=True,
    ),
    # Stable-DiffCoder-8B Base and Instruct: block-causal Llama.
    # Source: ByteDance Seed 2026, https://github.com/ByteDance-Seed/Stable-DiffCoder.
    "stable_diffcoder": replace(
        _LLAMA,
        name="Stable-DiffCoder",
        architecture="StableDiffcoderForCausalLM",
        mask_id=5,
        eos_id=2,
        block_length=4,
        block_keys=("block_size",),
    ),
    # Open-dLLM and Open-dCoder-0.5B. Their config.json is that of an ordinary Qwen2.
    # Source: Peng et al. 2025, https://github.com/pengzhangzhi/Open-dLLM.
    "open_dllm": replace(_QWEN2, name="Open-dLLM", logit_shift=1, is_named_by_caller=True),
    # Nemotron-Labs-Diffusion 3B, 8B and 14B: Ministral 3 that denoises a block in both directions.
    # Source: NVIDIA 2026, Nemotron-Labs-Diffusion. Differs: this is the diffusion mode alone, where
    # every column sees every other and predicts itself. The authors' default keeps finished text
    # under a causal mask and takes the first token of a block from it; neither is done here.
    "nemotron_labs_diffusion": replace(
        _LLAMA,
        name="Nemotron-Labs-Diffusion",
        architecture="NemotronLabsDiffusionModel",
        names={
            part: name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")
            for part, name in NAMES.items()
        },
        refusals=(
            SILU,
            Refusal("dlm_paradigm", ("bidirectional", "block_diff")),
            NO_BIAS,
            NO_MLP_BIAS,
            NO_WINDOW,
        ),
        mask_id=100,
        is_causal_too=True,
    ),
}
"""Families by the names that `load_model(..., family=...)` takes."""

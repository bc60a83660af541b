"""Nemotron-Labs-Diffusion 3B, 8B and 14B: Ministral 3 that denoises a block in both directions.

Source: NVIDIA 2026, Nemotron-Labs-Diffusion. Differs: this is the diffusion mode alone, where every
column sees every other and predicts itself. The authors' default keeps finished text under a causal
mask and takes the first token of a block from it; neither is done here.
"""

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.shared import NAMES, NO_BIAS, NO_MLP_BIAS, NO_WINDOW, read_shape

NEMOTRON_LABS_DIFFUSION = Family(
    name="Nemotron-Labs-Diffusion",
    architecture="NemotronLabsDiffusionModel",
    names={
        part: name.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")
        for part, name in NAMES.items()
    },
    read_shape=read_shape,
    refusals=(
        Refusal("hidden_act", ("silu",), "to be 'silu'"),
        Refusal("dlm_paradigm", ("bidirectional", "block_diff"), "to be 'bidirectional'"),
        NO_BIAS,
        NO_MLP_BIAS,
        NO_WINDOW,
    ),
    mask_id=100,
    eos_id=None,
    fast_tokenizer=True,
    is_causal_too=True,
)

"""Dream 7B Base and Instruct; Dream-Coder, DiffuCoder, and d3LLM's and dParallel's Dream weights.

Source: Ye et al. 2025, "Dream 7B", https://arxiv.org/abs/2508.15487.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, REFUSALS, read_shape

DREAM = Family(
    name="Dream",
    architecture="DreamModel",
    names=NAMES,
    read_shape=partial(read_shape, qkv_bias=True),
    refusals=REFUSALS,
    mask_id=151666,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    logit_shift=1,
)

"""Open-dLLM and Open-dCoder-0.5B: Qwen2 that attends in both directions; predictions are shifted.

Its config.json is that of an ordinary Qwen2, so it must be asked for: family="open_dllm".
Source: Peng et al. 2025, https://github.com/pengzhangzhi/Open-dLLM.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, REFUSALS, read_shape

OPEN_DLLM = Family(
    name="Open-dLLM",
    architecture="Qwen2ForCausalLM",
    names=NAMES,
    read_shape=partial(read_shape, qkv_bias=True),
    refusals=REFUSALS,
    # The first id that Qwen2.5's tokenizer has left.
    mask_id=151665,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    logit_shift=1,
    is_named_by_caller=True,
)

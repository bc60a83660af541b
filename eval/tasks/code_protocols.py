"""Settings under which HumanEval and MBPP were published for diffusion models, by name.

Source: Settings: the evaluation scripts of LLaDA, https://github.com/ML-GSAI/LLaDA, Fast-dLLM,
https://github.com/NVlabs/Fast-dLLM, dParallel, https://github.com/czg1225/dParallel, D2F,
https://github.com/zhijie-group/Discrete-Diffusion-Forcing, and Dream,
https://github.com/DreamLM/Dream.

Differs: Where the scripts ask an instruction-tuned model for a fenced block, the words are our own.
LLaDA's setting holds EOS back, and Dream's draws at temperature 0.1 with top_p 0.9: options of the
decode, not of a prompt.
"""

from collections.abc import Mapping
from typing import NamedTuple


class CodeProtocol(NamedTuple):
    """A published setting.

    Attributes:
        is_instruction: The prompt asks for a fenced block; else the answer continues the prompt.
        is_chat: The prompt is put into the chat template.
        num_fewshot: Demonstrations.
        gen_length: Answer length in tokens.
        block_length: Tokens per block, the answer's length where the setting has no blocks; None:
            the model's own.
    """

    is_instruction: bool
    is_chat: bool
    num_fewshot: int
    gen_length: int
    block_length: int | None


HUMANEVAL: Mapping[str, CodeProtocol] = {
    "lm_eval": CodeProtocol(False, False, 0, 512, None),
    "instruct": CodeProtocol(True, True, 0, 512, None),
    # The plain prompt as one user turn.
    "fast_dllm": CodeProtocol(False, True, 0, 256, 32),
    "fast_dllm_dream": CodeProtocol(False, False, 0, 256, 32),
    "llada": CodeProtocol(True, True, 0, 512, 512),
    "llada_1_5": CodeProtocol(True, True, 0, 512, 32),
    "llada_base": CodeProtocol(False, False, 0, 1024, 1024),
    "dparallel": CodeProtocol(False, True, 0, 256, 32),
    "d2f": CodeProtocol(False, True, 0, 512, 32),
    "dream": CodeProtocol(True, True, 0, 768, 768),
    "dream_base": CodeProtocol(False, False, 0, 512, 512),
}

MBPP: Mapping[str, CodeProtocol] = {
    "lm_eval": CodeProtocol(False, False, 3, 256, None),
    "instruct": CodeProtocol(True, True, 3, 256, None),
    "fast_dllm": CodeProtocol(False, True, 3, 256, 32),
    "fast_dllm_dream": CodeProtocol(False, False, 3, 256, 32),
    "llada_base": CodeProtocol(False, False, 3, 1024, 1024),
    "dparallel": CodeProtocol(False, True, 3, 256, 32),
    "d2f": CodeProtocol(False, True, 3, 512, 32),
    "dream": CodeProtocol(True, True, 0, 1024, 1024),
}

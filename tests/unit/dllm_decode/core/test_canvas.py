"""Behaviour of a canvas that property/test_independent_loop.py does not check."""

from dllm_decode import Canvas, DecodeConfig
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import Row

MASK, EOS = 9, 8


def test_answers_of_any_length_are_read_with_eos_after_their_ends() -> None:
    prompts = (([1, 2], 2), ([3], 4))
    requests = [Request(0, prompt, DecodeConfig(gen_length=length)) for prompt, length in prompts]
    rows = [Row.of(request, 1, MASK) for request in requests]
    canvas = Canvas.of(rows, width=5, mask_id=MASK, eos_ids=(EOS,))
    assert canvas.answer_tokens().tolist() == [[MASK, MASK, EOS, EOS], [MASK] * 4]

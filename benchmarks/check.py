"""Compares an accelerator's answers with those of the CPU, with the very same weights."""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.contenders import CONTENDERS, decode_setting, parse_pair
from benchmarks.frame import Row
from benchmarks.setting import Setting
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer

CHECKED = (*CONTENDERS[:5], "DualCache(), SelfVerify(4)")


def check_against_cpu(setting: Setting) -> list[Row]:
    """Decodes and scores a small model on the CPU and on the setting's device.

    A row each for the float32 tokens of a cache and verifier that are the CPU's; for the columns
    whose likeliest token in bfloat16 is that of float32 on the CPU; and for the greatest difference
    of a float32 logit.
    """
    torch.set_num_threads(setting.num_threads)
    setting = replace(setting, geometry="small", batch_size=4, gen_length=64, steps_per_block=8)
    on_cpu = replace(setting, device="cpu", dtype="float32").model()
    expected = {name: _answers(on_cpu, setting, name) for name in CHECKED}
    exact = _logits(on_cpu, setting)
    rough = _logits(on_cpu.to(torch.bfloat16), setting)
    there = replace(setting, device="cpu", dtype="float32").model().to(setting.device)
    rows = [
        _agreement(f"float32 tokens, {name}", _answers(there, setting, name), tokens)
        for name, tokens in expected.items()
    ]
    error = float((_logits(there, setting) - exact).abs().max())
    narrow = _logits(there.to(torch.bfloat16), setting)
    likeliest = exact.argmax(-1)
    return [
        *rows,
        _agreement("bfloat16 argmax, device", narrow.argmax(-1), likeliest),
        _agreement("bfloat16 argmax, CPU", rough.argmax(-1), likeliest),
        {"what": "largest float32 error", "error": error},
    ]


def _agreement(name: str, found: Tensor, expected: Tensor) -> Row:
    return {"what": name, "same": int((found == expected).sum()), "of": expected.numel()}


def _answers(model: MaskedTransformer, setting: Setting, name: str) -> Tensor:
    cache, verifier = parse_pair(name, setting.target)
    return decode_setting(model, setting, cache=cache, verifier=verifier).tokens


def _logits(model: MaskedTransformer, setting: Setting) -> Tensor:
    tokens = torch.tensor(setting.prompts(), device=model.device)
    columns = torch.arange(tokens.shape[1], device=model.device).expand_as(tokens)
    return model.predict(ForwardInputs(tokens, columns, columns)).cpu()

"""Compares an accelerator's answers with those of the CPU."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.contenders import parse_pair
from benchmarks.setting import Setting
from dllm_decode import decode
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.base import ForwardInputs
from samplers import FixedSchedule

CHECKED = (
    "NoCache(), NoVerifier()",
    "PrefixCache(), NoVerifier()",
    "DualCache(), NoVerifier()",
    "FreeCache(), NoVerifier()",
    "DelayedCache(), NoVerifier()",
    "DualCache(), SelfVerify(4)",
)


@dataclass(frozen=True)
class Correctness:
    """One model, on two devices.

    Attributes:
        num_tokens: Answer tokens, of all rows, that each contender decoded in float32.
        same_tokens: How many of these tokens are the CPU's, by cache and verifier.
        argmax_agreement: Share of columns whose likeliest token in bfloat16 on the device is that
            in float32 on the CPU.
        cpu_argmax_agreement: As before, with bfloat16 on the CPU.
        num_columns: Number of columns of the two shares before.
        float32_error: Greatest difference of a float32 logit from the CPU's.
    """

    num_tokens: int
    same_tokens: dict[str, int]
    argmax_agreement: float
    cpu_argmax_agreement: float
    num_columns: int
    float32_error: float


def check_against_cpu(setting: Setting) -> Correctness:
    """Decodes and scores on the CPU and on the setting's device with the very same weights."""
    torch.set_num_threads(setting.num_threads)
    setting = replace(setting, geometry="small", batch_size=4, gen_length=64, steps_per_block=8)
    on_cpu = replace(setting, device="cpu", dtype="float32").model()
    expected = {name: _answers(on_cpu, setting, name) for name in CHECKED}
    exact = _logits(on_cpu, setting)
    rough = _logits(on_cpu.to(torch.bfloat16), setting)
    there = replace(setting, device="cpu", dtype="float32").model().to(setting.device)
    same = {
        name: int((_answers(there, setting, name) == tokens).sum())
        for name, tokens in expected.items()
    }
    error = float((_logits(there, setting) - exact).abs().max())
    narrow = _logits(there.to(torch.bfloat16), setting)
    return Correctness(
        num_tokens=setting.batch_size * setting.gen_length,
        same_tokens=same,
        argmax_agreement=_agreement(narrow, exact),
        cpu_argmax_agreement=_agreement(rough, exact),
        num_columns=exact.shape[0] * exact.shape[1],
        float32_error=error,
    )


def _answers(model: MaskedTransformer, setting: Setting, options: str) -> Tensor:
    cache, verifier = parse_pair(options, setting.target)
    out = decode(
        model,
        setting.prompts(),
        FixedSchedule(setting.steps_per_block),
        cache=cache,
        verifier=verifier,
        gen_length=setting.gen_length,
        block_length=setting.block_length,
        stop_at_eos=False,
    )
    return out.tokens


def _logits(model: MaskedTransformer, setting: Setting) -> Tensor:
    tokens = torch.tensor(setting.prompts(), device=model.device)
    columns = torch.arange(tokens.shape[1], device=model.device).expand_as(tokens)
    return model.predict(ForwardInputs(tokens, columns, columns)).cpu()


def _agreement(logits: Tensor, exact: Tensor) -> float:
    return float((logits.argmax(-1) == exact.argmax(-1)).double().mean())

"""The contenders: the plain reference loop, and `decode` with its caches and verifiers."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.frame import TableRow
from benchmarks.peer_process import peak_mb
from benchmarks.plain_loop import run_loop
from benchmarks.setting import Setting, decode_setting, parse_pair
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer

REFERENCE = "plain reference loop"
CONTENDERS = (
    "NoCache(), NoVerifier()",
    "PrefixCache(), NoVerifier()",
    "DualCache(), NoVerifier()",
    "FreeCache(), NoVerifier()",
    "DelayedCache(), NoVerifier()",
    "NoCache(), SelfVerify(4)",
    "DualCache(), SelfVerify(2)",
    "DualCache(), SelfVerify(4)",
    "DualCache(), SelfVerify(8)",
    'DualCache(), SelfVerify(4, "tree")',
)
"""Cache and verifier of each row of the table."""


class Ran(NamedTuple):
    """Answers, calls of the mask predictor, columns computed in all calls, and seconds."""

    tokens: list[list[int]]
    forwards: int
    columns: int
    wall_s: float


Work = Callable[[MaskedTransformer, Setting], Ran]


def call_in_own_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Calls a module-level function in a fresh process, so that its memory is its own."""
    # Spawned, because a forked process cannot use CUDA.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def measure(setting: Setting, name: str) -> TableRow:
    """Runs one contender on a warm model of its own: `REFERENCE`, or a cache and a verifier.

    The row's `tokens` are the answers.
    """
    torch.set_num_threads(setting.num_threads)
    work, model = work_of(name), setting.model()
    warm_up(model, setting, work)
    ran = work(model, setting)
    return {
        "contender": name.removesuffix(", NoVerifier()"),
        "s": ran.wall_s,
        "ms a token": 1000 * ran.wall_s / sum(map(len, ran.tokens)),
        "forwards": ran.forwards,
        "columns": ran.columns,
        "peak MB": peak_mb(model.device),
        "tokens": ran.tokens,
    }


def work_of(name: str) -> Work:
    """Returns the function that decodes."""
    if name == REFERENCE:
        return run_reference
    cache, verifier = parse_pair(name)

    def work(model: MaskedTransformer, setting: Setting) -> Ran:
        out = decode_setting(model, setting, cache=cache, verifier=verifier)
        return Ran(out.tokens.tolist(), out.forwards, int(out.query_positions.sum()), out.wall_s)

    return work


def run_reference(model: MaskedTransformer, setting: Setting) -> Ran:
    """Runs the loop of the published code: full-canvas head, float64 softmax, one row at a time."""

    def logits_of(canvas: Tensor) -> Tensor:
        columns = torch.arange(canvas.shape[1], device=model.device)[None]
        return model.predict(ForwardInputs(canvas.to(model.device), columns, columns))

    started = time.perf_counter()
    answers = [
        run_loop(
            logits_of, prompt, gen_length=setting.gen_length, block_length=setting.block_length,
            steps_per_block=setting.steps_per_block, mask_id=model.mask_id,
        )
        for prompt in setting.prompts()
    ]  # fmt: skip
    wall_s = time.perf_counter() - started
    forwards = sum(answer.num_forwards for answer in answers)
    columns = forwards * (setting.prompt_length + setting.gen_length)
    return Ran([answer.tokens for answer in answers], forwards, columns, wall_s)


def warm_up(model: MaskedTransformer, setting: Setting, work: Callable[..., object]) -> None:
    """Decodes in full twice on a GPU, or if forwards are compiled; otherwise once, in few steps."""
    if model.device.type == "cuda" or model.compiled:
        work(model, setting)
        work(model, setting)
    else:
        work(model, replace(setting, steps_per_block=min(2, setting.steps_per_block)))

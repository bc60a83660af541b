"""The contenders: the plain reference loop, and `decode` with its caches and verifiers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

import dllm_decode
from benchmarks.floor import Machine
from benchmarks.measure import Measurement, Watch
from benchmarks.memory import PeakMemory
from benchmarks.plain_loop import Answer, run_loop
from benchmarks.setting import Setting
from dllm_decode import CachePolicy, CausalTarget, DecodeOutput, Verifier, decode
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.base import ForwardInputs
from samplers import FixedSchedule
from samplers.expression import parse_expression

_MOST_WARM_UPS = 8

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
    "FreeCache(), ARVerify(target())",
    "FreeCache(), Guided(target())",
)
"""Cache and verifier of each row of the table."""


def run_reference(setting: Setting, machine: Machine) -> Measurement:
    """Runs the loop of the published code: full-canvas head, float64 softmax, one row at a time."""
    torch.set_num_threads(setting.num_threads)
    tiny = _tiny(setting)
    _loop(tiny.model(), tiny)
    model = setting.model()
    watch, peak = _observe(model)
    _loop(model, replace(setting, gen_length=setting.block_length, steps_per_block=1))
    watch.clear()
    started = time.perf_counter()
    results = _loop(model, setting)
    wall_s = time.perf_counter() - started
    forwards = sum(result.num_forwards for result in results)
    return _measurement(
        setting,
        machine,
        model,
        watch,
        tokens=[result.tokens for result in results],
        forwards=forwards,
        query_positions=forwards * (setting.prompt_length + setting.gen_length),
        wall_s=wall_s,
        extra_peak_bytes=peak.extra_bytes(),
    )


def run_decode(setting: Setting, machine: Machine, options: str) -> Measurement:
    """Runs `decode` with the reference's schedule and the given cache and verifier."""
    torch.set_num_threads(setting.num_threads)
    tiny = _tiny(setting)
    _decode(tiny.model(), tiny, parse_pair(options, tiny.target))
    targets = []

    def target() -> CausalTarget:
        targets.append(setting.target())
        return targets[-1]

    pair = parse_pair(options, target)
    model = setting.model()
    watch, peak = _observe(model, targets)
    warm_up(model, setting, pair)
    watch.clear()
    captured = num_graphs(model)
    out = _decode(model, setting, pair)
    assert num_graphs(model) == captured, "a graph was captured while time was taken"
    return _measurement(
        setting,
        machine,
        model,
        watch,
        tokens=out.tokens.tolist(),
        forwards=out.forwards,
        query_positions=int(out.query_positions.sum()),
        wall_s=out.wall_s,
        extra_peak_bytes=peak.extra_bytes(),
    )


def warm_up(model: MaskedTransformer, setting: Setting, pair: tuple[CachePolicy, Verifier]) -> None:
    """Warms up: runs a shortened decode without graphs, else decodes until no graph is added."""
    if model.device.type != "cuda":
        _decode(model, replace(setting, steps_per_block=min(2, setting.steps_per_block)), pair)
        return
    captured = -1
    for _ in range(_MOST_WARM_UPS):
        if num_graphs(model) == captured:
            return
        captured = num_graphs(model)
        _decode(model, setting, pair)
    raise RuntimeError(
        f"Every decode must replay the graphs of the one before after {_MOST_WARM_UPS} of them, "
        f"got {num_graphs(model)} graphs and still more."
    )


def num_graphs(model: MaskedTransformer) -> int:
    """Counts the graphs that a model has captured."""
    runner = model._runner
    return runner.num_graphs if runner is not None else 0


def parse_pair(options: str, target: Callable[[], CausalTarget]) -> tuple[CachePolicy, Verifier]:
    """Reads "DualCache(), SelfVerify(4)"; `target()` is a causal target."""
    named = {name: getattr(dllm_decode, name) for name in dllm_decode.__all__}
    named |= {"pair": _pair, "target": target}
    cache, verifier = parse_expression(f"pair({options})", named)
    return cache, verifier


def _pair(cache: CachePolicy, verifier: Verifier) -> tuple[CachePolicy, Verifier]:
    return cache, verifier


def _tiny(setting: Setting) -> Setting:
    """Returns a tiny setting to run first, so that libraries load their own code and buffers."""
    return replace(setting, geometry="tiny", prompt_length=8)


def _observe(
    model: MaskedTransformer, targets: Sequence[CausalTarget] = ()
) -> tuple[Watch, PeakMemory]:
    watch = Watch(model.device)
    watch.follow(model)
    for target in targets:
        watch.follow_target(target)
    return watch, PeakMemory(model.device)


def _loop(model: MaskedTransformer, setting: Setting) -> list[Answer]:
    def logits_of(canvas: Tensor) -> Tensor:
        columns = torch.arange(canvas.shape[1], device=model.device)[None]
        return model.predict(
            ForwardInputs(canvas.to(model.device), positions=columns, wanted=columns)
        )

    return [
        run_loop(
            logits_of,
            prompt,
            gen_length=setting.gen_length,
            block_length=setting.block_length,
            steps_per_block=setting.steps_per_block,
            mask_id=model.mask_id,
        )
        for prompt in setting.prompts()
    ]


def _decode(
    model: MaskedTransformer, setting: Setting, pair: tuple[CachePolicy, Verifier]
) -> DecodeOutput:
    cache, verifier = pair
    return decode(
        model,
        setting.prompts(),
        FixedSchedule(setting.steps_per_block),
        cache=cache,
        verifier=verifier,
        gen_length=setting.gen_length,
        block_length=setting.block_length,
        stop_at_eos=False,
    )


def _measurement(
    setting: Setting,
    machine: Machine,
    model: MaskedTransformer,
    watch: Watch,
    *,
    tokens: list[list[int]],
    forwards: int,
    query_positions: int,
    wall_s: float,
    extra_peak_bytes: int | None,
) -> Measurement:
    is_complete = len(watch.forwards) == forwards
    floor_s = sum(machine.seconds(setting, *groups) for groups in watch.forwards)
    logits = setting.batch_size * setting.block_length * model.vocab_size
    return Measurement(
        tokens=tokens,
        forwards=forwards,
        query_positions=query_positions,
        wall_s=wall_s,
        model_s=watch.model_s() if is_complete else None,
        target_s=watch.target_s(),
        floor_s=floor_s if is_complete else None,
        memory_bytes=watch.memory_bytes,
        logits_bytes=logits * model.dtype.itemsize,
        weight_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        extra_peak_bytes=extra_peak_bytes,
    )

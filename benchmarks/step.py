"""Where the time of a step goes.

Profiles the steps of a block after its first one, and sorts the operations: matrix products,
attention and the rest of the model; statistics and decision of the sampler; the rest of the loop.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.contenders import warm_up
from benchmarks.frame import TableRow
from benchmarks.setting import Setting, decode_setting
from dllm_decode import CachePolicy, DualCache, NoCache
from dllm_decode.core.observers import StepEvent
from dllm_decode.engine.decide import decide
from dllm_decode.models import MaskedTransformer

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise")
MODEL, SAMPLER = "dllm_decode: model", "dllm_decode: sampler"


class StepProfiler:
    """An observer that profiles the steps after the first one."""

    def __init__(self, is_cuda: bool) -> None:
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_cuda
        self.profile = profile(activities=kinds, record_shapes=True)
        self.count = -1

    def __call__(self, event: StepEvent) -> None:
        self.count += 1
        if self.count == 0:
            self.profile.start()
        if event.ended.all():
            self.profile.stop()


def step_rows(setting: Setting) -> list[TableRow]:
    """Returns the milliseconds of a step, by cache and part."""
    torch.set_num_threads(setting.num_threads)
    model, setting = setting.model(), replace(setting, gen_length=setting.block_length)
    rows: list[TableRow] = []
    for cache in (NoCache(), DualCache()):
        ms_by_part = profile_step(model, setting, cache)
        rows += [
            {
                "cache": f"{type(cache).__name__}()",
                "part": part,
                "ms": ms,
                "share": ms / sum(ms_by_part.values()),
            }
            for part, ms in ms_by_part.items()
        ]
    return rows


def profile_step(model: MaskedTransformer, setting: Setting, cache: CachePolicy) -> Counter[str]:
    """Returns the milliseconds of a step by part, the largest first; on CUDA those of the GPU."""
    parts: Counter[str] = Counter()
    is_cuda = model.device.type == "cuda"
    with mark_parts(model):
        warm_up(model, setting, lambda m, s: decode_setting(m, s, cache=cache))
        profiler = StepProfiler(is_cuda)
        decode_setting(model, setting, cache=cache, observers=[profiler])
    for event in profiler.profile.events() or ():
        if event.device_type == DeviceType.CPU:
            spent = event.self_device_time_total if is_cuda else event.self_cpu_time_total
            parts[step_part_of(event, setting.sizes.vocab_size)] += spent
    return Counter(
        {part: us / 1000 / profiler.count for part, us in parts.most_common() if part != "profiler"}
    )


@contextmanager
def mark_parts(model: MaskedTransformer) -> Iterator[None]:
    """While open, marks the work of the model and of the sampler for the profiler."""
    with (
        patch.object(model, "predict", record_function(MODEL)(model.predict)),
        patch("dllm_decode.engine.round.decide", record_function(SAMPLER)(decide)),
    ):
        yield


def step_part_of(event: FunctionEvent, vocab_size: int) -> str:
    """Returns the part of a step that an operation belongs to."""
    if event.name.startswith("ProfilerStep") or event.name.startswith("cuda"):
        return "profiler"
    owner: FunctionEvent | None = event
    while owner is not None and owner.name not in (MODEL, SAMPLER):
        owner = owner.cpu_parent
    if owner is None:
        return "loop: checks, statistics, canvas"
    if owner.name == SAMPLER:
        return "sampler: statistics and decision"
    if event.name in PRODUCTS:
        is_head = any(vocab_size in shape for shape in event.input_shapes or () if shape)
        return "model: head" if is_head else "model: products of the layers"
    if "attention" in event.name:
        return "model: attention"
    return "model: norms, rotation, copies, Python"

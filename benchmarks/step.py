"""Where the time of a step goes: python -m benchmarks.step.

Profiles the steps of a block after its first one, and sorts the operations: matrix products,
attention and the rest of the model; statistics and decision of the sampler; the rest of the loop.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.contenders import decode_setting
from benchmarks.floor import Columns, measure_machine, weight_bytes
from benchmarks.frame import Row, read_options, report
from benchmarks.setting import Setting
from dllm_decode.caches import CachePolicy
from dllm_decode.cli.plugins import parse_cache
from dllm_decode.core.observers import StepEvent
from dllm_decode.engine.decide import decide
from dllm_decode.launch import run_main
from dllm_decode.models import MaskedTransformer

OPTIONS = {
    "geometry": ("8x512", "sizes of the model"),
    "cache": (["NoCache()", "DualCache()"], "caches"),
    "batch_size": (1, "rows"),
    "num_threads": (2, "of torch"),
}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise")
MODEL, SAMPLER = "dllm_decode: model", "dllm_decode: sampler"


class Steps:
    """An observer that profiles the steps after the first one."""

    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self.count = -1

    def __call__(self, event: StepEvent) -> None:
        self.count += 1
        if self.count == 0:
            self.profile.start()
        if event.ended.all():
            self.profile.stop()


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.step", __doc__ or "", OPTIONS, words)
    setting = Setting(
        options.geometry, gen_length=32, batch_size=options.batch_size,
        num_threads=options.num_threads,
    )  # fmt: skip
    machine, model = measure_machine(setting), setting.model()
    rows: list[Row] = []
    for text in options.cache:
        found = profiled(model, setting, parse_cache(text))
        rows += [
            {"cache": text, "part": part, "ms a step": ms, "share": ms / sum(found.values())}
            for part, ms in found.items()
        ]
    read_s = weight_bytes(setting.sizes, setting.torch_dtype) / machine.bytes_per_s
    block = Columns(options.batch_size, 32, setting.prompt_length + 32, 32)
    least_s = machine.seconds(setting, block)
    title = (
        f"Steps of a block after its first, {options.geometry}, {options.batch_size} rows, "
        f"{options.num_threads} threads; reading all weights takes {1000 * read_s:.1f} ms, the "
        f"least time of a block step is {1000 * least_s:.1f} ms"
    )
    report(title, rows, options)


def profiled(model: MaskedTransformer, setting: Setting, cache: CachePolicy) -> Counter[str]:
    """Returns the milliseconds of a step by part, the largest first."""
    parts: Counter[str] = Counter()
    with named_parts(model):
        decode_setting(model, replace(setting, steps_per_block=2), cache=cache)
        steps = Steps()
        decode_setting(model, setting, cache=cache, observers=[steps])
    for event in steps.profile.events() or ():
        parts[part_of(event, setting.sizes.vocab_size)] += event.self_cpu_time_total
    return Counter(
        {part: us / 1000 / steps.count for part, us in parts.most_common() if part != "profiler"}
    )


@contextmanager
def named_parts(model: MaskedTransformer) -> Iterator[None]:
    """Lets the profiler know when the model and when the sampler are at work, while it is open."""
    with (
        patch.object(model, "predict", record_function(MODEL)(model.predict)),
        patch("dllm_decode.engine.round.decide", record_function(SAMPLER)(decide)),
    ):
        yield


def part_of(event: FunctionEvent, vocab_size: int) -> str:
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


if __name__ == "__main__":
    run_main(main)

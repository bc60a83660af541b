"""Time of one step of each sampler and of a forward: python -m benchmarks.samplers."""

from collections.abc import Sequence

import torch

from benchmarks.frame import least_seconds, read_options, report
from benchmarks.setting import Setting
from dllm_decode.core.model import ForwardInputs
from dllm_decode.launch import run_main
from samplers import ALL_SAMPLERS, Sampler, View
from samplers.logits.summary import Summary

CPU = torch.device("cpu")
ROUNDS = 10
OPTIONS = {
    "geometry": ("8x512", "sizes of the model"),
    "batch_size": (8, "rows"),
    "num_threads": (2, "of torch"),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.samplers", __doc__ or "", OPTIONS, words)
    setting = Setting(
        options.geometry, batch_size=options.batch_size, num_threads=options.num_threads
    )
    torch.set_num_threads(setting.num_threads)
    forward_s = seconds_of_forward(setting)
    # The first measurement of a process pays for its memory.
    seconds_of_step(ALL_SAMPLERS[0](), setting)
    rows = []
    for sampler in (made for kind in ALL_SAMPLERS if (made := kind()).scope == "block"):
        step_s = seconds_of_step(sampler, setting)
        name = type(sampler).__name__
        rows.append({"sampler": name, "ms": 1000 * step_s, "of a forward": step_s / forward_s})
    title = (
        f"One step, {setting.batch_size} rows, blocks of {setting.block_length}, bfloat16, V = "
        f"{setting.sizes.vocab_size:,}, least of {ROUNDS}; "
        f"a forward takes {1000 * forward_s:.0f} ms"
    )
    report(title, rows, options)


def seconds_of_forward(setting: Setting) -> float:
    """Times one forward over all columns, head on one block."""
    model = setting.model()
    length = setting.prompt_length + setting.gen_length
    columns = torch.arange(length).expand(setting.batch_size, -1)
    wanted = columns[:, setting.prompt_length : setting.prompt_length + setting.block_length]
    inputs = ForwardInputs(columns % setting.sizes.vocab_size, columns, wanted)
    return least_seconds(lambda: model.predict(inputs), CPU, ROUNDS)


def seconds_of_step(sampler: Sampler, setting: Setting) -> float:
    """Times a step on fresh statistics; the state is that of the block's second step."""
    shape = (setting.batch_size, setting.block_length)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, setting.sizes.vocab_size, generator=generator).bfloat16()
    masked, tokens = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long)
    leave_one_out = torch.zeros(shape) if sampler.leave_one_out else None

    def view() -> View:
        summary = Summary(logits)
        return View(
            tokens, summary, masked, masked, 0, setting.gen_length, leave_one_out=leave_one_out
        )

    _, state = sampler.step(view(), sampler.init(view()))
    return least_seconds(lambda: sampler.step(view(), state), CPU, ROUNDS)


if __name__ == "__main__":
    run_main(main)

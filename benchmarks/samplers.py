"""`python -m benchmarks.samplers`: time of one step of each sampler, compared with a forward."""

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.setting import Setting
from dllm_decode.models.base import ForwardInputs
from samplers import ALL_SAMPLERS, Sampler, View
from samplers.logits.summary import Summary

ROUNDS = 10


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="rows (default: 8)")
    parser.add_argument("--num-threads", type=int, default=2, help="of torch (default: 2)")
    options = parser.parse_args()
    setting = Setting(batch_size=options.batch_size, num_threads=options.num_threads)
    forward_s = seconds_of_forward(setting)
    table = Table(title=f"One step, {options.batch_size} rows, V = {setting.sizes.vocab_size:,}")
    table.add_column("sampler")
    table.add_column("ms", justify="right")
    table.add_column(f"share of a forward ({1000 * forward_s:.0f} ms)", justify="right")
    # The first measurement of a process pays for its memory.
    seconds_of_step(ALL_SAMPLERS[0](), setting)
    for sampler in (made for kind in ALL_SAMPLERS if (made := kind()).scope == "block"):
        step_s = seconds_of_step(sampler, setting)
        name = type(sampler).__name__
        table.add_row(name, f"{1000 * step_s:.1f}", f"{step_s / forward_s:.1%}")
    table.caption = "blocks of 32, bfloat16, least of ten"
    Console().print(table)


def seconds_of_forward(setting: Setting) -> float:
    """Times one forward over all columns, head on one block."""
    model = setting.model()
    length = setting.prompt_length + setting.gen_length
    columns = torch.arange(length).expand(setting.batch_size, -1)
    wanted = columns[:, setting.prompt_length : setting.prompt_length + setting.block_length]
    inputs = ForwardInputs(tokens=columns, positions=columns, wanted=wanted)
    return least(lambda: model.predict(inputs))


def seconds_of_step(sampler: Sampler, setting: Setting) -> float:
    """Times a step on fresh statistics; the state is that of the block's second step."""
    shape = (setting.batch_size, setting.block_length)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, setting.sizes.vocab_size, generator=generator).bfloat16()
    masked = torch.ones(shape, dtype=torch.bool)
    leave_one_out = torch.zeros(shape) if sampler.leave_one_out else None

    def view() -> View:
        tokens = torch.zeros(shape, dtype=torch.long)
        return View(
            tokens,
            Summary(logits),
            masked,
            masked,
            0,
            setting.gen_length,
            leave_one_out=leave_one_out,
        )

    _, state = sampler.step(view(), sampler.init(view()))
    return least(lambda: sampler.step(view(), state))


def least(work: Callable[[], object]) -> float:
    """Returns the least seconds of a few tries, after one to warm up."""
    work()
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


if __name__ == "__main__":
    main()

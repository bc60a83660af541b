"""How the time of a step grows with prompt length and batch size."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.contenders import decode_setting
from benchmarks.floor import Columns, Machine, num_flops
from benchmarks.frame import Row, wait_for
from benchmarks.setting import Setting
from benchmarks.watch import watch_memory
from dllm_decode import CachePolicy, DualCache, NoCache
from dllm_decode.models import MaskedTransformer

# With a block of 32 after it, 736 is a canvas of 768 columns.
PROMPT_LENGTHS = (128, 256, 512, 736, 1024, 2048, 4096)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
TRIES = 3


def points_of(
    setting: Setting, prompt_lengths: Sequence[int], batch_sizes: Sequence[int]
) -> list[Setting]:
    """Lists the points: each length in one row, and each number of rows of one length."""
    one_block = replace(setting, gen_length=setting.block_length)
    lengths = [replace(one_block, prompt_length=n, batch_size=1) for n in prompt_lengths]
    batches = [replace(one_block, batch_size=size) for size in batch_sizes]
    return list(dict.fromkeys([*lengths, *batches]))


def measure_growth(settings: list[Setting], machine: Machine) -> list[Row]:
    """Measures all points on one model, in turn; a step is forward, sampler and loop."""
    torch.set_num_threads(settings[0].num_threads)
    model = settings[0].model()
    return with_ratios([_point(model, setting, machine) for setting in settings])


def with_ratios(rows: list[Row]) -> list[Row]:
    """Returns rows that say how many times the tokens of one row a batch gives, where known."""
    alone = {row["prompt"]: row["tokens a s"] for row in rows if row["batch"] == 1}
    for row in rows:
        if row["prompt"] in alone:
            row["times batch 1"] = row["tokens a s"] / alone[row["prompt"]]
    return rows


def _point(model: MaskedTransformer, setting: Setting, machine: Machine) -> Row:
    block, rows = setting.block_length, setting.batch_size
    width = setting.prompt_length + block
    _, full_s = _seconds(model, setting, NoCache(), min(3, block))
    extra_bytes = watch_memory(model.device)
    first_s, block_s = _seconds(model, setting, DualCache(), block)
    extra = extra_bytes()
    full = Columns(rows=rows, computed=width, attended=width, wanted=block)
    row: Row = {"prompt": setting.prompt_length, "batch": rows}
    forwards = (("no cache", full, full_s), ("DualCache", full._replace(computed=block), block_s))
    for name, forward, seconds in forwards:
        rate = num_flops(setting.sizes, forward) / seconds
        row[f"{name}, ms"] = 1000 * seconds
        row[f"{name}, times floor"] = seconds / machine.seconds(setting, forward)
        row[f"{name}, of matrix rate"] = rate / machine.flops_per_s
    return row | {
        "first step, ms": 1000 * first_s,
        "tokens a s": rows * block / (first_s + (block - 1) * block_s),
        "extra MB": extra and extra / 1e6,
    }


def _seconds(
    model: MaskedTransformer, setting: Setting, cache: CachePolicy, num_steps: int
) -> tuple[float, float]:
    """Returns the seconds of a decode in one step, and of each further step."""

    def least_s(steps: int) -> float:
        wait_for(model.device)
        one = replace(setting, steps_per_block=steps)
        return min(decode_setting(model, one, cache=cache).wall_s for _ in range(TRIES))

    first_s = least_s(1)
    return first_s, (least_s(num_steps) - first_s) / max(1, num_steps - 1)

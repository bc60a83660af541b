"""How the time of a step grows with prompt length and batch size."""

from dataclasses import dataclass, replace

import torch

from benchmarks.floor import Columns, Machine, num_flops, wait_for
from benchmarks.memory import PeakMemory
from benchmarks.setting import Setting
from dllm_decode import CachePolicy, DualCache, NoCache, decode
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule

# With a block of 32 after it, 736 is a canvas of 768 columns.
PROMPT_LENGTHS = (128, 256, 512, 736, 1024, 2048, 4096)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
TRIES = 3


@dataclass(frozen=True)
class Step:
    """Cost of one more step of a decode: forward, sampler and loop.

    Attributes:
        seconds: Seconds for all rows.
        floor_s: Least seconds that its forward can take.
        rate_share: Its matrix products over those that the machine could do in that time.
    """

    seconds: float
    floor_s: float
    rate_share: float


@dataclass(frozen=True)
class Point:
    """One prompt length and batch size; one block, one token a step.

    Attributes:
        prompt_length: Tokens.
        batch_size: Rows.
        full: A step without a cache: all columns, the head on the block.
        block: A step with `DualCache` after its first: the block alone.
        first_s: Seconds from the call of `decode` to the end of the first step, with `DualCache`.
        s_per_token: Seconds of the whole block with `DualCache`, over its tokens in all rows.
        extra_peak_bytes: Most bytes that `DualCache` held in addition to the weights.
    """

    prompt_length: int
    batch_size: int
    full: Step
    block: Step
    first_s: float
    s_per_token: float
    extra_peak_bytes: int | None


def points_of(setting: Setting, prompt_lengths: list[int], batch_sizes: list[int]) -> list[Setting]:
    """Lists the points: each length in one row, and each number of rows of one length."""
    one_block = replace(setting, gen_length=setting.block_length)
    lengths = [replace(one_block, prompt_length=n, batch_size=1) for n in prompt_lengths]
    batches = [replace(one_block, batch_size=size) for size in batch_sizes]
    return list(dict.fromkeys([*lengths, *batches]))


def measure_growth(settings: list[Setting], machine: Machine) -> list[Point]:
    """Measures all points on one model, in turn."""
    torch.set_num_threads(settings[0].num_threads)
    model = settings[0].model()
    return [_point(model, setting, machine) for setting in settings]


def _point(model: MaskedTransformer, setting: Setting, machine: Machine) -> Point:
    block, rows = setting.block_length, setting.batch_size
    width = setting.prompt_length + block
    _, full_s = _seconds(model, setting, NoCache(), min(3, block))
    peak = PeakMemory(model.device)
    first_s, block_s = _seconds(model, setting, DualCache(), block)
    full = Columns(rows=rows, computed=width, attended=width, wanted=block)
    return Point(
        prompt_length=setting.prompt_length,
        batch_size=rows,
        full=_step(setting, machine, full, full_s),
        block=_step(setting, machine, full._replace(computed=block), block_s),
        first_s=first_s,
        s_per_token=(first_s + (block - 1) * block_s) / (rows * block),
        extra_peak_bytes=peak.extra_bytes(),
    )


def _seconds(
    model: MaskedTransformer, setting: Setting, cache: CachePolicy, num_steps: int
) -> tuple[float, float]:
    """Returns the seconds of a decode in one step, and of each further step."""
    walls = []
    for steps in (1, num_steps):
        sampler, tried = FixedSchedule(steps), []
        for _ in range(TRIES):
            wait_for(model.device)
            out = decode(
                model,
                setting.prompts(),
                sampler,
                cache=cache,
                gen_length=setting.gen_length,
                block_length=setting.block_length,
                stop_at_eos=False,
            )
            tried.append(out.wall_s)
        walls.append(min(tried))
    return walls[0], (walls[1] - walls[0]) / max(1, num_steps - 1)


def _step(setting: Setting, machine: Machine, forward: Columns, seconds: float) -> Step:
    return Step(
        seconds=seconds,
        floor_s=machine.seconds(setting, forward),
        rate_share=num_flops(setting.sizes, forward) / machine.flops_per_s / seconds,
    )

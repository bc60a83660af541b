"""How the time of a step grows with prompt, answer, rows and vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.contenders import decode_setting
from benchmarks.floor import Columns, Machine, num_flops
from benchmarks.frame import Row, wait_for
from benchmarks.setting import Setting
from benchmarks.watch import watch_memory
from dllm_decode import CachePolicy, DualCache, NoCache
from dllm_decode.models import MaskedTransformer

TRIES = 3
# What grows: the column of the table, and its name in the picture.
_AXES = {
    "prompt": "tokens of the prompt",
    "answer": "tokens of the answer",
    "batch": "rows",
    "vocabulary": "entries of the vocabulary",
}


def points_of(setting: Setting, grown: Mapping[str, Sequence[int]]) -> list[Setting]:
    """Lists the points: one row of one block, and each point that differs from it in one size.

    `grown` has by field of the setting the sizes to compare.
    """
    one = replace(
        setting, gen_length=setting.block_length, batch_size=1, vocab_size=setting.sizes.vocab_size
    )
    others = [replace(one, **{name: size}) for name, sizes in grown.items() for size in sizes]
    return list(dict.fromkeys([one, *others]))


def measure_growth(settings: Sequence[Setting], machine: Machine) -> list[Row]:
    """Measures all points in turn; a step is forward, sampler and loop."""
    torch.set_num_threads(settings[0].num_threads)
    rows = []
    for _, alike in groupby(settings, key=lambda setting: setting.vocab_size):
        points = list(alike)
        model = points[0].model()
        rows += [_point(model, setting, machine) for setting in points]
    return with_ratios(rows)


def with_ratios(rows: list[Row]) -> list[Row]:
    """Returns rows that say how many times the tokens of one row a batch gives, where known."""
    alone = {_but(row, "batch"): row["tokens a s"] for row in rows if row["batch"] == 1}
    for row in rows:
        if _but(row, "batch") in alone:
            row["times batch 1"] = row["tokens a s"] / alone[_but(row, "batch")]
    return rows


def draw_growth(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draws the milliseconds of a step, one size growing in each part of the picture, as SVG."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 10}):
        figure = Figure(figsize=(9.0, 6.0), layout="constrained")
        others = ", ".join(f"{name} {rows[0][name]:,}" for name in _AXES)
        figure.suptitle(f"{title}\nwhere nothing else is said: {others}", fontsize=10)
        parts = figure.subplots(2, 2, sharey=True).flat
        for axes, (name, label) in zip(parts, _AXES.items(), strict=True):
            # The first row is the point from which each of the others differs in one size.
            grown = [row for row in rows if _but(row, name) == _but(rows[0], name)]
            grown.sort(key=lambda row: row[name])
            for contender, style in (("no cache", "o-"), ("DualCache", "s--")):
                times = [row[f"{contender}, ms"] for row in grown]
                axes.loglog([row[name] for row in grown], times, style, label=contender)
            axes.set_xticks([row[name] for row in grown], [f"{row[name]:,}" for row in grown])
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
            axes.set(xlabel=label, ylabel="ms a step")
            axes.grid(alpha=0.3)
            axes.legend()
        figure.savefig(path, metadata={"Date": None})


def _but(row: Row, name: str) -> tuple[int, ...]:
    """Returns all sizes of a row but one."""
    return tuple(row[other] for other in _AXES if other != name)


def _point(model: MaskedTransformer, setting: Setting, machine: Machine) -> Row:
    block, rows = setting.block_length, setting.batch_size
    width = setting.prompt_length + setting.gen_length
    is_long = setting.gen_length > block
    _, full_s = _seconds(model, setting, NoCache(), 1 + min(1 if is_long else 2, block - 1))
    extra_bytes = watch_memory(model.device)
    first_s, block_s = _seconds(model, setting, DualCache(), min(4, block) if is_long else block)
    extra = extra_bytes()
    full = Columns(rows=rows, computed=width, attended=width, wanted=block)
    row: Row = {
        "prompt": setting.prompt_length,
        "answer": setting.gen_length,
        "batch": rows,
        "vocabulary": setting.sizes.vocab_size,
    }
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
    """Returns the seconds of the first step of a block, and of each further step."""
    num_blocks = setting.gen_length // setting.block_length

    def least_s(steps: int) -> float:
        wait_for(model.device)
        one = replace(setting, steps_per_block=steps)
        times = [decode_setting(model, one, cache=cache).wall_s for _ in range(TRIES)]
        return min(times) / num_blocks

    first_s = least_s(1)
    return first_s, (least_s(num_steps) - first_s) / max(1, num_steps - 1)

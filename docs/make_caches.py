"""Prints the comparison of caches in benchmarks/results, and draws the picture of docs/caches.md.

PYTHONPATH=. python docs/make_caches.py FOLDER ..., the results of eval/sweeps/caches.toml,
caches_lists.toml and caches_long.toml.
"""

import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from eval.metrics.statistics import mean, wilson
from eval.reports.comparison import compare, results
from eval.reports.pooling import Pooled, means_of, primary_scores

# Okabe and Ito's palette, as in reports.
COLOURS = {
    "NoCache": "#000000", "DualCache": "#0072B2", "FreeCache": "#009E73",
    "EntropyCache": "#D55E00", "CertaintyCache": "#CC79A7",
}  # fmt: skip
TICKS = (50, 100, 200, 500, 1000, 2000, 5000)
SHAPES = ("o", "^", "s")
# In the table; the picture has all.
SHOWN = ("EntropyCache(0.1)", "EntropyCache(0.02)", "CertaintyCache(16, fill=4)")


class Point(NamedTuple):
    """One setting of a sweep."""

    pool: Pooled
    sampler: str
    cache: str
    right: float
    number: int
    columns: float

    @property
    def kind(self) -> str:
        return self.cache.split("(")[0]

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = wilson(round(self.right * self.number), self.number)
        return low, high


def points_of(folder: str) -> list[Point]:
    """Returns the settings of a results folder."""
    found = []
    for pool in results(folder):
        scores = primary_scores(pool)
        columns = mean([*means_of(pool.finished, "query_positions").values()])
        names = (_short(pool.settings.sampler), _short(pool.settings.cache))
        found.append(Point(pool, *names, mean([*scores.values()]), len(scores), columns))
    return found


def _short(expression: str) -> str:
    """Returns an expression without the arguments that no setting of the sweeps changes."""
    unused = r"before=0, after=0|last_k=64|sigma=10\.0|bound=0\.1|order='entropy'"
    short = re.sub(rf"(, )?({unused})", "", expression).replace("refresh_every=0", "")
    return re.sub(r"(threshold|num_masks)=", "", short.replace("(, ", "("))


def lines_of(points: Sequence[Point]) -> list[str]:
    """Returns rows of Markdown: caches that read the last look, and the nearest of the others."""
    lines = []
    for point in sorted(points, key=lambda one: one.sampler, reverse=True):
        if point.cache not in SHOWN:
            continue
        others = [
            one for one in points
            if one.sampler == point.sampler and one.kind in ("DualCache", "FreeCache")
        ]  # fmt: skip
        near = min(others, key=lambda one: abs(one.columns - point.columns))
        found = compare(near.pool, point.pool)
        cells = (
            f"`{point.pool.settings.model}`", f"`{point.sampler}`", f"`{point.cache}`",
            _interval(point.right, point.bounds), f"{point.columns:.0f}", f"`{near.cache}`",
            _interval(near.right, near.bounds), f"{near.columns:.0f}",
            f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _interval(value: float, bounds: tuple[float, float]) -> str:
    return f"{value:.3f} [{bounds[0]:.3f}, {bounds[1]:.3f}]"


def draw(tasks: Sequence[Sequence[Point]], path: Path) -> None:
    """Draws accuracy against columns: a colour for each cache, a shape for each sampler."""
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    for axes, points in zip(figure.subplots(1, len(tasks)), tasks, strict=True):
        _draw_task(axes, points)
    samplers = dict.fromkeys(point.sampler for points in tasks for point in points)
    keys = [Line2D([], [], color=colour, label=kind) for kind, colour in COLOURS.items()]
    keys += [
        Line2D([], [], color="#555555", linestyle="", marker=shape, label=sampler)
        for shape, sampler in zip(SHAPES, samplers, strict=True)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=130)


def _draw_task(axes: Axes, points: Sequence[Point]) -> None:
    samplers = dict.fromkeys(point.sampler for point in points)
    for (shape, sampler), kind in product(zip(SHAPES, samplers, strict=True), COLOURS):
        own = [one for one in points if (one.sampler, one.kind) == (sampler, kind)]
        own.sort(key=lambda one: one.columns)
        away = [(one.right - one.bounds[0], one.bounds[1] - one.right) for one in own]
        if own:
            axes.errorbar(
                [one.columns for one in own], [one.right for one in own],
                yerr=list(zip(*away, strict=True)), color=COLOURS[kind], marker=shape,
                markersize=5, linewidth=1.2, elinewidth=0.6,
            )  # fmt: skip
    first = points[0]
    axes.set_title(f"{first.pool.settings.model}, n = {first.number}", fontsize=10)
    axes.set_xscale("log")
    axes.set_xticks([t for t in TICKS if axes.get_xlim()[0] < t < axes.get_xlim()[1]])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("columns computed an answer", fontsize=9)
    axes.set_ylabel("accuracy", fontsize=9)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    folders = [points_of(folder) for folder in sys.argv[1:]]
    print("\n".join(line for points in folders for line in lines_of(points)))
    draw(folders, Path(__file__).parent / "img" / "caches.png")

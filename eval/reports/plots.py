"""The picture of a trade-off: accuracy against the tokens for a cost."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from eval.metrics.costs import COSTS, CostMeasure, Row, is_on_front, speed_of
from eval.metrics.curves import method_of, points_of
from eval.metrics.metrics import TradeOff

# Okabe and Ito's palette, which most colour-blind readers can tell apart; shapes differ, too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", ":", "-.")


def draw_trade_off(
    rows: Sequence[Row],
    path: Path,
    *,
    title: str,
    cost: CostMeasure = COSTS["forwards"],
    exact: Sequence[TradeOff] = (),
) -> None:
    """Draws accuracy against the tokens for a cost as PNG and SVG.

    Each method has a colour, and a line joins its settings; bars are 95 per cent intervals; a
    setting is pale if another setting is better in both. Labels are the numbers of the rows, from
    1; rows whose cost is unknown are left out. `exact` is the curve of an exact model, dotted.
    `path` is the path of both files, without the suffix.
    """
    # Text instead of outlines keeps the SVG small; a fixed salt of its ids makes it reproducible.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trade-off", "font.size": 10}):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        axes: Axes = figure.add_subplot()
        placed = points_of(rows, cost)
        drawn = [_Placed(rows[number], point, cost) for number, point in placed.items()]
        _draw_methods(axes, drawn)
        for point, label in places_of(placed).items():
            axes.annotate(label, point, xytext=(6, 5), textcoords="offset points", fontsize=8)
        if exact:
            speeds, accuracies = zip(*sorted(exact), strict=True)
            axes.plot(speeds, accuracies, ":", color="#555555", zorder=1, linewidth=1.6,
                      label="exact model, random order")  # fmt: skip
        _dress(axes, drawn, title)
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


class _Placed(NamedTuple):
    row: Row
    point: TradeOff
    cost: CostMeasure

    @property
    def speed(self) -> Row:
        return speed_of(self.row, self.cost) or {}


def _draw_methods(axes: Axes, drawn: Sequence[_Placed]) -> None:
    methods: dict[str, list[_Placed]] = defaultdict(list)
    for setting in drawn:
        methods[method_of(setting.row["settings"])].append(setting)
    for index, (method, settings) in enumerate(methods.items()):
        settings = sorted(settings, key=lambda setting: setting.point)
        # Each round of colours shifts the shapes by one, so that 64 methods have different pairs.
        colour = _COLOURS[index % len(_COLOURS)]
        num_rounds = index // len(_COLOURS)
        shape = _SHAPES[(index + num_rounds) % len(_SHAPES)]
        axes.plot([s.point.speed for s in settings], [s.point.accuracy for s in settings],
                  _DASHES[num_rounds % len(_DASHES)], color=colour, alpha=0.5, linewidth=1.2,
                  zorder=2)  # fmt: skip
        for number, setting in enumerate(settings):
            axes.errorbar(
                [setting.point.speed], [setting.point.accuracy], zorder=3,
                xerr=_reach(setting.speed, setting.point.speed),
                yerr=_reach(setting.row["accuracy"], setting.point.accuracy),
                fmt=shape, markersize=6.5, color=colour, elinewidth=1, capsize=2,
                alpha=1.0 if is_on_front(setting.row, setting.cost) else 0.45,
                label=method if number == 0 else None,
            )  # fmt: skip


def _reach(interval: Row, value: float) -> list[list[float]]:
    return [[max(0.0, value - interval["low"])], [max(0.0, interval["high"] - value)]]


def _dress(axes: Axes, drawn: Sequence[_Placed], title: str) -> None:
    axes.set_xscale("log", base=2)
    low = min(s.speed["low"] for s in drawn) / 1.15
    high = max(s.speed["high"] for s in drawn) * 1.15
    axes.set_xlim(low, high)
    axes.set_xticks(ticks(low, high))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lowest = min(s.row["accuracy"]["low"] for s in drawn)
    highest = max(s.row["accuracy"]["high"] for s in drawn)
    axes.set_ylim(max(-0.03, lowest - 0.05), min(1.03, highest + 0.05))
    has_target = any(s.row["speed"]["target_nfe"] for s in drawn)
    of_both = " (forwards of model and target)" * has_target
    axes.set_xlabel(f"{drawn[0].cost.axis}{of_both}, log scale")
    axes.set_ylabel("accuracy")
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # A picture may hold any number of methods, so the legend is next to the axes: it hides nothing.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers between two positive numbers: 1, 2, 5 times powers of ten, or finer."""
    chosen: list[float] = []
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        candidates = [float(f"{step * 10.0**power:.3g}") for power in powers for step in steps]
        chosen = [tick for tick in candidates if low <= tick <= high]
        if len(chosen) >= 4:
            break
    return chosen


def places_of(points: Mapping[int, TradeOff]) -> dict[TradeOff, str]:
    """Joins rows that share a spot of the picture under one label: their numbers, from 1.

    A spot is 2 per cent of speed and 0.01 of accuracy.
    """
    joined: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, point in points.items():
        spot = (round(math.log(point.speed) / 0.02), round(point.accuracy / 0.01))
        joined[spot].append(number)
    return {points[rows[0]]: ", ".join(str(row + 1) for row in rows) for rows in joined.values()}

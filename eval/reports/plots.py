"""The picture of a trade-off: accuracy against tokens per forward."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from eval.metrics.curves import Row, method_of, point_of
from eval.metrics.metrics import TradeOff

# Okabe and Ito's palette, which most colour-blind readers can tell apart, and shapes besides.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_trade_off(
    rows: Sequence[Row], path: Path, *, title: str, exact: Sequence[TradeOff] = ()
) -> list[Path]:
    """Draws accuracy against tokens per forward as PNG and SVG.

    Methods have a colour each and their settings are joined; bars are 95 per cent intervals; what
    another setting beats in both is pale. Labels are the numbers of the rows, from 1.

    Args:
        rows: Settings of one task and model, from `eval.reports.summary`.
        path: Where to, without the suffix.
        title: Above the picture.
        exact: Curve of an exact model, dotted.

    Returns:
        The two files.
    """
    # Names instead of outlines keep the file small, and fixed ids keep it the same.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trade-off", "font.size": 10}):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        axes: Axes = figure.add_subplot()
        _draw_methods(axes, rows)
        for point, label in places_of(rows).items():
            axes.annotate(label, point, xytext=(6, 5), textcoords="offset points", fontsize=8)
        if exact:
            speeds, accuracies = zip(*sorted(exact), strict=True)
            axes.plot(speeds, accuracies, ":", color="#555555", zorder=1, linewidth=1.6,
                      label="exact model, random order")  # fmt: skip
        _dress(axes, rows, title)
        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        figure.savefig(files[0], dpi=150)
        figure.savefig(files[1], metadata={"Date": None})
    return files


def _draw_methods(axes: Axes, rows: Sequence[Row]) -> None:
    methods: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        methods[method_of(row["settings"])].append(row)
    for index, (method, own) in enumerate(methods.items()):
        own = sorted(own, key=point_of)
        # Shapes move on by one with every round of colours: 64 methods before a pair comes back.
        colour = _COLOURS[index % len(_COLOURS)]
        shape = _SHAPES[(index + index // len(_COLOURS)) % len(_SHAPES)]
        points = [point_of(row) for row in own]
        axes.plot([p.tokens_per_forward for p in points], [p.accuracy for p in points], "-",
                  color=colour, alpha=0.5, linewidth=1.2, zorder=2)  # fmt: skip
        for number, (row, point) in enumerate(zip(own, points, strict=True)):
            alpha = 1.0 if row["is_on_front"] else 0.45
            axes.errorbar(
                [point.tokens_per_forward], [point.accuracy], zorder=3,
                xerr=_reach(row["speed"]["tokens_per_any_forward"], point.tokens_per_forward),
                yerr=_reach(row["accuracy"], point.accuracy),
                fmt=shape, markersize=6.5, color=colour, alpha=alpha, elinewidth=1, capsize=2,
                label=method if number == 0 else None,
            )  # fmt: skip


def _reach(interval: Row, value: float) -> list[list[float]]:
    return [[max(0.0, value - interval["low"])], [max(0.0, interval["high"] - value)]]


def _dress(axes: Axes, rows: Sequence[Row], title: str) -> None:
    axes.set_xscale("log", base=2)
    low = min(row["speed"]["tokens_per_any_forward"]["low"] for row in rows) / 1.15
    high = max(row["speed"]["tokens_per_any_forward"]["high"] for row in rows) * 1.15
    axes.set_xlim(low, high)
    axes.set_xticks(ticks(low, high))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lowest, highest = (f(row["accuracy"][end] for row in rows) for f, end in _ENDS)
    axes.set_ylim(max(-0.03, lowest - 0.05), min(1.03, highest + 0.05))
    of_both = " of either model" if any(row["speed"]["target_nfe"] for row in rows) else ""
    axes.set_xlabel(f"tokens per forward{of_both} (log scale)")
    axes.set_ylabel("accuracy")
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # A single picture may hold any number of methods; beside the axes nothing is covered.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


_ENDS: tuple[tuple[Callable[..., float], str], ...] = ((min, "low"), (max, "high"))


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers between two positive ones: 1, 2 and 5 times powers of ten, or finer."""
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        every = [float(f"{step * 10.0**power:.3g}") for power in powers for step in steps]
        found = [tick for tick in every if low <= tick <= high]
        if len(found) >= 4:
            break
    return found


def places_of(rows: Sequence[Row]) -> dict[TradeOff, str]:
    """Joins rows that share a spot of the picture under one label: their numbers, from 1.

    A spot is 2 per cent of speed and 0.01 of accuracy.
    """
    joined: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        point = point_of(row)
        spot = (round(math.log(point.tokens_per_forward) / 0.02), round(point.accuracy / 0.01))
        joined[spot].append(number)
    return {
        point_of(rows[own[0]]): ", ".join(str(number + 1) for number in own)
        for own in joined.values()
    }

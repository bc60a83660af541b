"""The picture of a trade-off: accuracy against tokens per forward."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from eval.metrics.curves import Row, method_of, point_of
from eval.metrics.metrics import Point

# Okabe and Ito's palette, which most colour-blind readers can tell apart, and shapes besides.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_trade_off(
    rows: Sequence[Row], path: Path, *, title: str, exact: Sequence[Point] = ()
) -> list[Path]:
    """Draws accuracy against tokens per forward as PNG and SVG.

    Methods have a colour each and their settings are joined; bars are 95 per cent intervals; what
    another setting beats in both is pale.

    Args:
        rows: Settings of one task and model, from `eval.metrics.summary`.
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
    low = min(row["speed"]["tokens_per_any_forward"]["low"] for row in rows)
    high = max(row["speed"]["tokens_per_any_forward"]["high"] for row in rows)
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xticks([tick for tick in _TICKS if low / 1.15 <= tick <= high * 1.15])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(-0.03, 1.03)
    of_both = " of either model" if any(row["speed"]["target_nfe"] for row in rows) else ""
    axes.set_xlabel(f"tokens per forward{of_both} (log scale)")
    axes.set_ylabel("accuracy")
    axes.set_title(title, fontsize=10, loc="left", wrap=True)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # A single picture may hold any number of methods; beside the axes nothing is covered.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


_TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

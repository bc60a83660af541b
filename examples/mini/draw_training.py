"""Draws what was measured while a model was trained.

    python examples/mini/draw_training.py OUTPUT.png FOLDER [FOLDER ...]

Each folder holds the `training.json` of one run or of several; each run began with the model of the
one before it. A grey line ends a run. Needs the extra `eval`.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

SPLITS = ("val", "test")
STEPS = " steps"
"""Scores of parts of an answer are left out."""


def main() -> None:
    """Reads the records and writes the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="picture to write, such as training.png")
    parser.add_argument("folders", type=Path, nargs="+", help="models, in the order of training")
    options = parser.parse_args()
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    curves: dict[str, list[tuple[float, float]]] = {}
    minutes = 0.0
    texts = [(folder / "training.json").read_text(encoding="utf-8") for folder in options.folders]
    records = [json.loads(text) for text in texts]
    for record in (run for each in records for run in each.get("runs", [each])):
        for point in record["history"]:
            elapsed = minutes + point["elapsed_s"] / 60
            for name in (each for each in point if each.startswith(SPLITS) and STEPS not in each):
                curves.setdefault(name, []).append((elapsed, point[name]))
        minutes += record["elapsed_s"] / 60
        axes.axvline(minutes, color="0.8", zorder=0)
    for name, points in sorted(curves.items()):
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(xlabel="minutes of training", ylabel="share that is right", ylim=(0, 1))
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(options.output, dpi=100)


if __name__ == "__main__":
    main()

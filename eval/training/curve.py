"""The picture of a training: held-out accuracy and forwards as it goes on."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path


def require_package(name: str, what: str, source: str) -> None:
    """Raises ValueError if a package that something needs is not installed."""
    try:
        import_module(name)
    except ImportError:
        raise ValueError(
            f"{what} needs the package {name}; install it with: pip install {source}."
        ) from None


def draw_curve(
    points: Sequence[Mapping[str, float]], file: Path, *, title: str, num_prompts: int
) -> None:
    """Draws accuracy with its interval, and forwards a prompt, over the answers that were learned.

    Each point has `samples`, `accuracy`, `low`, `high` and `forwards`; the file is a PNG.
    """
    # A chart is all that needs the package, which is in the extra `eval`.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    samples = [point["samples"] for point in points]
    accuracy = [point["accuracy"] for point in points]
    above.fill_between(
        samples, [point["low"] for point in points], [point["high"] for point in points],
        color="#0072B2", alpha=0.2, linewidth=0,
    )  # fmt: skip
    above.plot(samples, accuracy, "o-", color="#0072B2")
    above.set_ylabel(f"accuracy, n = {num_prompts}")
    above.set_title(title, fontsize=10, loc="left", wrap=True)
    forwards = [point["forwards"] for point in points]
    below.plot(samples, forwards, "s-", color="#D55E00")
    below.set_ylabel("forwards a prompt")
    below.set_ylim(0, 1.05 * max(forwards))
    below.set_xlabel("answers learned")
    for axes in (above, below):
        axes.grid(color="#e5e7eb", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)

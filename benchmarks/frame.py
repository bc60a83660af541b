"""Parts of every benchmark: options, times, and one table of rows, in Markdown and as JSON."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

import torch

from eval.metrics.statistics import Estimate
from eval.runs.provenance import device_name, now

TableRow: TypeAlias = dict[str, Any]
"""By the name of its column each value of a table's row."""

Known: TypeAlias = Mapping[str, tuple[Any, str]]
"""By name the default and the help of each option."""


def make_parser(name: str, about: str, known: Known) -> argparse.ArgumentParser:
    """Builds a command line; the default of an option says what it takes.

    A list takes several values; an empty list, a text each time that the option is given; a tuple,
    several of its items (default: all); a mapping, one of its keys (default: the first); a type, a
    value that may be left out; `False`, no value.
    """
    parser = argparse.ArgumentParser(f"python -m {name}", description=about)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    for option, (default, text) in known.items():
        arguments: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, bool):
            arguments = {"action": "store_true"}
        elif isinstance(default, type):
            arguments = {"type": default}
        elif isinstance(default, list):
            several = {"type": type(default[0]), "nargs": "+"} if default else {"action": "append"}
            arguments = {**several, "default": default}
        elif isinstance(default, tuple):
            arguments = {"choices": default, "nargs": "+", "default": list(default)}
        elif isinstance(default, Mapping):
            arguments = {"choices": tuple(default), "default": next(iter(default))}
        parser.add_argument(f"--{option.replace('_', '-')}", help=text, **arguments)
    return parser


def table_of(rows: Sequence[TableRow]) -> str:
    """Lays out rows in Markdown; a cell that a row lacks is a dash."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join("| " + " | ".join(map(str.ljust, line, widths)) + " |\n" for line in lines)


def cell(value: Any) -> str:
    """Writes one value: four digits of a number, an interval in brackets."""
    if isinstance(value, Estimate):
        return f"{cell(value.value)} [{cell(value.low)}, {cell(value.high)}]"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def origin(command: str, device: str, num_threads: int | None = None) -> TableRow:
    """Returns the date, the command, the processor and the version of torch."""
    return {
        "date": now(),
        "command": command,
        "hardware": device_name(torch.device(device)),
        "threads": num_threads or torch.get_num_threads(),
        "torch": torch.__version__,
    }


def median_of(values: Sequence[float]) -> Estimate:
    """Returns the median of some values with their range."""
    return Estimate(median(values), min(values), max(values))


def least_seconds(work: Callable[[], object], device: torch.device, tries: int = 5) -> float:
    """Returns the least time of a few tries, after one to warm up."""
    seconds = []
    for _ in range(tries + 1):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def wait_for(device: torch.device) -> None:
    """Returns once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""Speed and memory of decoding, compared with a plain reference loop, in one run.

Part "check", if there is an accelerator, compares its answers with the CPU's; "table" compares
the plain loop with `decode`, its caches and its verifiers; "growth" times a step by prompt length
and batch size. Every contender has a process of its own. `python -m benchmarks gpu --help`: a day
on a GPU.
"""

import datetime
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import gpu
from benchmarks.contenders import run_decode, run_reference
from benchmarks.correctness import check_against_cpu
from benchmarks.floor import Machine, measure_machine
from benchmarks.growth import measure_growth, points_of
from benchmarks.measure import Measurement, in_a_process_of_its_own
from benchmarks.neighbour import busy_neighbour
from benchmarks.options import Options, read_options
from benchmarks.setting import Setting
from benchmarks.tables import table_of_contenders, table_of_correctness, table_of_growth
from dllm_decode.launch import run_main

REFERENCE = "plain reference loop"
BUSY = ", with one busy neighbour"


class Record:
    """The figures measured so far, written to disk at once."""

    def __init__(self, setting: Setting, path: Path | None, words: list[str]) -> None:
        self._path = path
        self._found: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python -m benchmarks", *words]),
            "hardware": describe_hardware(setting),
            "torch": torch.__version__,
            "setting": asdict(setting),
        }

    def add(self, name: str, found: object) -> None:
        """Adds a part, or more of it."""
        self._found[name] = found
        if self._path:
            self._path.write_text(json.dumps(self._found, indent=1) + "\n")


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = read_options(__doc__ or "", words)
    setting, console = options.setting, Console(width=136)
    record = Record(setting, options.json, words)
    machine = in_a_process_of_its_own(measure_machine, setting)
    record.add("machine", asdict(machine))
    if "check" in options.parts and torch.device(setting.device).type != "cpu":
        found = in_a_process_of_its_own(check_against_cpu, setting)
        record.add("check", asdict(found))
        console.print(table_of_correctness(found, setting))
    if "table" in options.parts:
        figures = _compare(options, machine, record)
        console.print(table_of_contenders(figures, setting, machine))
    if "growth" in options.parts:
        settings = points_of(setting, options.prompt_lengths, options.batch_sizes)
        points = in_a_process_of_its_own(measure_growth, settings, machine)
        record.add("growth", [asdict(point) for point in points])
        console.print(table_of_growth(points))


def _compare(options: Options, machine: Machine, record: Record) -> dict[str, Measurement]:
    setting = options.setting
    figures: dict[str, Measurement] = {}
    names = [REFERENCE, *options.contenders] if options.with_reference else options.contenders
    for name in track(names, "contenders", console=Console(stderr=True)):
        if name == REFERENCE:
            figures[name] = in_a_process_of_its_own(run_reference, setting, machine)
        else:
            figures[name] = in_a_process_of_its_own(run_decode, setting, machine, name)
        record.add("table", {name: asdict(figure) for name, figure in figures.items()})
    if options.neighbour:
        name = options.neighbour.removesuffix(", NoVerifier()") + BUSY
        with busy_neighbour():
            figures[name] = in_a_process_of_its_own(run_decode, setting, machine, options.neighbour)
        record.add("table", {name: asdict(figure) for name, figure in figures.items()})
    return figures


def describe_hardware(setting: Setting) -> str:
    """Names the processor that is measured."""
    if torch.device(setting.device).type == "cuda":
        return torch.cuda.get_device_name(setting.device)
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {setting.num_threads} threads"


if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:
        run_main(lambda: gpu.main(sys.argv[2:]))
    else:
        run_main(lambda: main(sys.argv[1:]))

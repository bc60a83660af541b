"""Measures on a GPU for at most a quarter of an hour; runs on a CPU too.

Each part runs in a process of its own, takes a few minutes and writes FOLDER/PART.json; a part with
such a file is not run again. Each figure is added to FOLDER/PART.jsonl as soon as it is measured.
Without --parts all parts run, also after one that fails, until the quarter of an hour has passed.
"""

import json
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.contenders import CONTENDERS, REFERENCE, measure
from benchmarks.frame import TableRow, make_parser, origin, table_of
from benchmarks.graphs import compiled_rows, graph_rows, weight_rows
from benchmarks.setting import DEVICE, GEOMETRIES, Setting
from dllm_decode.settings.files import write_json

Rows: TypeAlias = list[TableRow]
PART_LIMIT_S = 480
TOTAL_LIMIT_S = 840
"""Seconds of a part, and of all parts."""
ROOT = Path(__file__).parents[1]


def tests(setting: Setting) -> Rows:
    """The tests that need a GPU."""
    # pytest-benchmark warns when it is not used, and warnings are errors in the tests.
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark", "-m", "gpu", "-n", "4"]
    if torch.device(setting.device).type != "cuda":
        command += ["--collect-only", "tests/unit/dllm_decode/models/loading"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-20:]
    return [{"exit status": done.returncode, "says": line} for line in last]


def one_row(setting: Setting) -> Rows:
    """The table of contenders, at one row."""
    rows = []
    for name in (REFERENCE, *CONTENDERS[:4], CONTENDERS[7]):
        row = measure(setting, name)
        rows.append({**row, "tokens": row["tokens"][0][:8]})
    return rows


def eight_rows(setting: Setting) -> Rows:
    """The table of contenders, at eight rows."""
    return one_row(replace(setting, batch_size=8))


PARTS: Mapping[str, Callable[[Setting], Iterable[TableRow]]] = {
    "graphs": graph_rows, "tests": tests, "weights": weight_rows, "one-row": one_row,
    "compiled": compiled_rows, "eight-rows": eight_rows,
}  # fmt: skip
"""In the order in which their findings are needed."""
OPTIONS = {
    "parts": (tuple(PARTS), "parts to run"),
    "folder": (Path("results/gpu"), "where the figures are kept"),
    "device": (DEVICE, "where the model runs"),
    "geometry": ({"llada-8b": None, **GEOMETRIES}, "sizes of the model"),
    "quick": (False, "a small model and short answers"),
}


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = make_parser("benchmarks gpu", __doc__ or "", OPTIONS).parse_args(words)
    setting = Setting(options.geometry, device=options.device)
    if options.quick:
        setting = replace(
            setting, geometry="tiny", prompt_length=24, gen_length=16, block_length=8,
            steps_per_block=4, dtype="float32", num_threads=1,
        )  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    failed, until_s = [], time.monotonic() + TOTAL_LIMIT_S
    for part in options.parts:
        path = options.folder / f"{part}.json"
        if not path.is_file():
            run(part, setting, path, min(PART_LIMIT_S, until_s - time.monotonic()))
        if path.is_file():
            saved = json.loads(path.read_text())
            print(f"\n{part}: {saved['about']} ({saved['hardware']})\n\n{table_of(saved['rows'])}")
        else:
            failed.append(part)
    if failed:
        sys.exit(f"These parts must be run again: {', '.join(failed)}.")


def run(part: str, setting: Setting, path: Path, limit_s: float) -> None:
    """Runs a part in a process of its own, and writes its figures if it has not failed."""
    if limit_s <= 0:
        return
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (part, setting, path)
        result = pool.apply_async(measure_part, arguments, error_callback=traceback.print_exception)
        result.wait(limit_s)
        if not result.ready():
            print(f"{part} took longer than {limit_s:.0f} s, and was ended.")


def measure_part(part: str, setting: Setting, path: Path) -> None:
    """Writes the figures of a part: whole or not at all, because a file that is there is done."""
    torch.set_num_threads(setting.num_threads)
    started, rows = time.perf_counter(), []
    with path.with_suffix(".jsonl").open("w") as lines:
        for row in PARTS[part](setting):
            rows.append(row)
            lines.write(f"{json.dumps(row)}\n")
            lines.flush()
    record = {
        **origin(f"python -m benchmarks gpu --parts {part}", setting.device, setting.num_threads),
        "about": str(PARTS[part].__doc__), "seconds": time.perf_counter() - started,
        "setting": asdict(setting), "rows": rows,
    }  # fmt: skip
    write_json(path, record)

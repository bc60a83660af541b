"""A day on a GPU: parts of at most eight minutes, in the order in which their findings are needed.

Each part is a process of its own and leaves FOLDER/PART.json; parts that are there are not run
again. Without --parts all run, and a part that fails does not keep the others from running.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_parts import PARTS
from benchmarks.setting import GEOMETRIES, Setting

LIMIT_S = 480


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = _parser().parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.here is not None:
        _run_here(options.here, _setting(options), options.folder)
        return
    failed = [part for part in options.parts if not _run(part, options, words)]
    if failed:
        sys.exit(f"These parts must be run again: {', '.join(failed)}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    names = list(PARTS)
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--folder", type=Path, default=Path("results/gpu"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--geometry", choices=list(GEOMETRIES), default="llada-8b")
    parser.add_argument("--quick", action="store_true", help="a small model and short answers")
    parser.add_argument("--again", action="store_true", help="run parts that are there already")
    parser.add_argument("--here", choices=names, help=argparse.SUPPRESS)
    return parser


def _setting(options: argparse.Namespace) -> Setting:
    setting = Setting(options.geometry, device=options.device)
    if not options.quick:
        return setting
    return replace(
        setting, geometry="tiny", prompt_length=24, gen_length=16, block_length=8,
        steps_per_block=4, dtype="float32", num_threads=1,
    )  # fmt: skip


def _run(part: str, options: argparse.Namespace, words: list[str]) -> bool:
    """Runs a part in a process of its own, unless its figures are there; says whether they are."""
    path, console = options.folder / f"{part}.json", Console(width=120)
    if options.again:
        path.unlink(missing_ok=True)
    if not path.is_file():
        command = [sys.executable, "-m", "benchmarks", "gpu", *words, "--here", part]
        try:
            done = subprocess.run(command, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            console.print(f"{part} took longer than {LIMIT_S} s, and was ended.")
            return False
        if done.returncode or not path.is_file():
            console.print(f"{part} failed with exit status {done.returncode}.")
            return False
    show(json.loads(path.read_text()), console)
    return True


def _run_here(part: str, setting: Setting, folder: Path) -> None:
    torch.set_num_threads(setting.num_threads)
    started = time.perf_counter()
    found = PARTS[part](setting)
    is_cuda = torch.device(setting.device).type == "cuda"
    record = {
        "part": part,
        "about": PARTS[part].__doc__,
        "seconds": time.perf_counter() - started,
        "hardware": torch.cuda.get_device_name(setting.device) if is_cuda else "cpu",
        "torch": torch.__version__,
        "setting": asdict(setting),
        **found,
    }
    # Written whole or not at all: what is there counts as done.
    partial = folder / f"{part}.partial"
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(folder / f"{part}.json")


def show(record: dict[str, Any], console: Console) -> None:
    """Prints the rows of a part as a table, and its text."""
    about = str(record["about"]).splitlines()[0]
    rows: list[dict[str, Any]] = record.get("rows", [])
    table = Table(title=f"{record['part']}: {about}", caption=str(record["hardware"]))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for column in columns:
        table.add_column(column, justify="right" if column.endswith(("_ms", "_us")) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)
    if record.get("text"):
        console.print(record["text"], markup=False, highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)

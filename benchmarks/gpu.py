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

from benchmarks.frame import Row, make_parser, origin, table_of
from benchmarks.gpu_parts import PARTS
from benchmarks.setting import GEOMETRIES, Setting
from dllm_decode.cli.files import write_json

LIMIT_S = 480
OPTIONS = {
    "parts": (tuple(PARTS), "parts to run"),
    "folder": (Path("results/gpu"), "where the figures are kept"),
    "device": ("cpu", "where the model runs; a GPU if there is one"),
    "geometry": (GEOMETRIES, "sizes of the model"),
    "quick": (False, "a small model and short answers"),
    "again": (False, "run parts that are there already"),
    "here": (str, argparse.SUPPRESS),
}


def main(words: list[str]) -> None:
    """Runs the command line."""
    parser = make_parser("benchmarks gpu", __doc__ or "", OPTIONS)
    has_cuda = torch.cuda.is_available()
    parser.set_defaults(device="cuda" if has_cuda else "cpu", geometry="llada-8b")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.here is not None:
        _run_here(options.here, _setting(options), options.folder)
        return
    failed = [part for part in options.parts if not _run(part, options, words)]
    if failed:
        sys.exit(f"These parts must be run again: {', '.join(failed)}.")


def _setting(options: Any) -> Setting:
    setting = Setting(options.geometry, device=options.device)
    if not options.quick:
        return setting
    return replace(
        setting, geometry="tiny", prompt_length=24, gen_length=16, block_length=8,
        steps_per_block=4, dtype="float32", num_threads=1,
    )  # fmt: skip


def _run(part: str, options: Any, words: list[str]) -> bool:
    """Runs a part in a process of its own, unless its figures are there; says whether they are."""
    path = options.folder / f"{part}.json"
    if options.again:
        path.unlink(missing_ok=True)
    if not path.is_file():
        command = [sys.executable, "-m", "benchmarks", "gpu", *words, "--here", part]
        try:
            done = subprocess.run(command, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"{part} took longer than {LIMIT_S} s, and was ended.")
            return False
        if done.returncode or not path.is_file():
            print(f"{part} failed with exit status {done.returncode}.")
            return False
    show(json.loads(path.read_text()))
    return True


def _run_here(part: str, setting: Setting, folder: Path) -> None:
    torch.set_num_threads(setting.num_threads)
    started = time.perf_counter()
    rows, text = PARTS[part](setting)
    record = {
        **origin(f"python -m benchmarks gpu --parts {part}", setting.device, setting.num_threads),
        "part": part,
        "about": PARTS[part].__doc__,
        "seconds": time.perf_counter() - started,
        "setting": asdict(setting),
        "rows": rows,
        "text": text,
    }
    # Whole or not at all, because a file that is there counts as done.
    write_json(folder / f"{part}.json", record)


def show(record: Row) -> None:
    """Prints the rows of a part as a table, and its text."""
    about = str(record["about"]).splitlines()[0]
    print(f"\n{record['part']}: {about} ({record['hardware']})\n\n{table_of(record['rows'])}")
    if record["text"]:
        print(record["text"])

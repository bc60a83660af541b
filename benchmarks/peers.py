"""Compares `decode` with the official code of a checkout that the user has, on the same weights.

Every run is a process of its own; the peer's code runs in the interpreter that the user names. In
every round, the peer's code and ours run in turn.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.contenders import call_in_own_process
from benchmarks.frame import TableRow, median_of
from benchmarks.setting import Setting
from dllm_decode.models import save_model

OURS = "dllm-decode"
PEERS = {
    "fast-dllm": {
        "generate": "NoCache(), NoVerifier()",
        "generate_with_prefix_cache": "PrefixCache(), NoVerifier()",
        "generate_with_dual_cache": "DualCache(), NoVerifier()",
    },
}
"""By peer and by its mode our cache and verifier of the same rule."""
_FOLDERS = {"fast-dllm": ("generate.py", (".", "llada", "v1/llada"))}
_ROOT = Path(__file__).parents[1]


def find_checkouts(texts: Sequence[str]) -> dict[str, Path]:
    """Reads "fast-dllm=PATH" and the like; returns the folder that holds each peer's modules.

    Raises:
        ValueError: If a peer is not known, or its code is not there.
    """
    checkouts = {}
    for text in texts:
        name, _, path = text.partition("=")
        if name not in PEERS or not path:
            raise ValueError(f"--peer must be NAME=PATH, NAME one of {[*PEERS]}, got {text!r}.")
        file, folders = _FOLDERS[name]
        places = [Path(path, folder) for folder in folders if Path(path, folder, file).is_file()]
        if not places:
            raise ValueError(f"A checkout of {name} must have a file {file}, got {path!r}.")
        checkouts[name] = places[0].resolve()
    return checkouts


def compare_with_peers(
    setting: Setting, checkouts: Mapping[str, Path], python: str, rounds: int
) -> Iterator[list[TableRow]]:
    """Yields the rows after each round: every mode of each peer, then ours of the same rule."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mask_id = call_in_own_process(_export, setting, folder)
        shared = {
            **asdict(setting), "setting": asdict(setting), "prompts": setting.prompts(),
            "mask_id": mask_id, "model": name,
        }  # fmt: skip
        # The peer's job, then ours.
        jobs = [
            {**shared, "contender": contender, "mode": mode, "checkout": str(place)}
            for peer, checkout in checkouts.items()
            for modes in PEERS[peer].items()
            for contender, mode, place in zip((peer, OURS), modes, (checkout, _ROOT), strict=True)
        ]
        runs: list[list[TableRow]] = [[] for _ in jobs]
        for _ in range(rounds):
            for job, job_runs in zip(jobs, runs, strict=True):
                interpreter = sys.executable if job["contender"] == OURS else python
                job_runs.append(_run(job, interpreter, folder))
            yield [_row(job, runs[i], runs[i // 2 * 2]) for i, job in enumerate(jobs)]


def _export(setting: Setting, folder: Path) -> int:
    model = setting.model()
    save_model(model, folder)
    return model.mask_id


def _run(job: Mapping[str, Any], python: str, folder: Path) -> TableRow:
    """Runs a contender once; `load` is the machine's load in the minute before the run."""
    load = os.getloadavg()[0]
    script, spec, result = Path(__file__).with_name("peer_process.py"), "job.json", "result.json"
    (folder / spec).write_text(json.dumps(job))
    command = [python, str(script), str(folder / spec), str(folder / result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-8:])
        raise RuntimeError(
            f"The process of {job['contender']} must end with status 0, got {done.returncode}. If "
            f"its code needs other versions, name an interpreter by --peer-python.\n{last}"
        )
    return {**json.loads((folder / result).read_text()), "load": load}


def _row(job: Mapping[str, Any], runs: Sequence[TableRow], theirs: Sequence[TableRow]) -> TableRow:
    # The CPU's time says nothing about work on a GPU.
    timed = "wall_s" if torch.device(job["device"]).type == "cuda" else "cpu_s"
    ours, official = ([run[timed] for run in side] for side in (runs, theirs))
    is_ours = job["contender"] == OURS
    return {
        "contender": (job["mode"] if is_ours else f"{job['contender']}: {job['mode']}"),
        "CPU s": median_of([run["cpu_s"] for run in runs]),
        "speed-up": median(official) / median(ours),
        "s": median_of([run["wall_s"] for run in runs]),
        "tokens": _difference(runs, theirs) if is_ours else None,
        "forwards": runs[0]["forwards"],
        "peak MB": runs[0]["peak_mb"],
        "rounds": len(runs),
        "load": median_of([run["load"] for run in runs]),
        "commit": _commit(job["checkout"]),
        "versions": runs[0]["versions"],
    }


def _difference(runs: Sequence[TableRow], theirs: Sequence[TableRow]) -> str:
    """Counts the tokens of all rounds that are not equal."""
    ours, official = (
        [token for run in side for row in run["tokens"] for token in row] for side in (runs, theirs)
    )
    num_different = sum(a != b for a, b in zip(ours, official, strict=True))
    return f"{num_different:,} of {len(ours):,} differ" if num_different else "same"


def _commit(checkout: str) -> str:
    command = ["git", "-C", checkout, "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"

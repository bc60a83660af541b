"""Runs commands in two processes, as torchrun starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def in_two_processes(*words: str, timeout_s: float = 120.0) -> list[tuple[int, str]]:
    """Returns exit codes and standard errors; "{rank}" in a word becomes the process's number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [
        ROOT,
        ROOT / "tests" / "helpers",
        ROOT / "tests" / "unit" / "dllm_decode" / "training",
        os.environ.get("PYTHONPATH", ""),
    ]
    children = []
    for rank in range(2):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1",
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
        }  # fmt: skip
        children.append(subprocess.Popen(
            [sys.executable, *(word.replace("{rank}", str(rank)) for word in words)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
    try:
        errors = [child.communicate(timeout=timeout_s)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, text) for child, text in zip(children, errors, strict=True)]

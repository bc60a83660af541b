"""The origin of a run: package, versions, device, threads, date."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

PACKAGE = "dllm-decode"
_OTHERS = ("numpy", "tokenizers", "transformers", "triton")


@lru_cache(maxsize=1)
def package_commit() -> str | None:
    """Returns the commit of this package, with a `+` if its files have changed.

    The commit is that of the checkout that the package is imported from, or the one that pip noted
    when it installed from a repository. A package in a virtual environment inside somebody's
    repository is not part of that repository: its commit is None.
    """
    return _checkout_commit(Path(__file__).parents[2]) or _installed_commit()


def version_of(package: str) -> str:
    """Returns the installed version of a package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def machine_of(device: str | torch.device) -> dict[str, Any]:
    """Describes the process that decodes: all but the date, which each record has."""
    device = torch.device(device)
    return {
        "package": version_of(PACKAGE),
        "commit": package_commit(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "host_platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "versions": {name: found for name in _OTHERS if (found := version_of(name))},
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "command": " ".join(sys.argv[1:]),
    }


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() or platform.processor() or platform.machine()


def now() -> str:
    """Returns the date and the time, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def _checkout_commit(root: Path) -> str | None:
    # In a work tree `.git` is a file.
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", "samplers", "dllm_decode", "eval")
    return f"{commit}+" if commit and changed else commit or None


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _installed_commit() -> str | None:
    try:
        noted = distribution(PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    commit = json.loads(noted or "{}").get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None

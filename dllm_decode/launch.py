"""Prepares a process that runs models; entry points import this before anything loads torch.

OpenMP reads its settings once, when torch is loaded. By default its threads wait for each other
actively: with one other busy process on the machine, a decode then takes up to ten times as long.
Here they wait passively, and there are no more of them than the process may use. Torch allocates
large tensors in large pages, because a step with a long vocabulary otherwise takes a thousand page
faults. Variables that the user has set in the environment stay.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def prepare() -> None:
    """Sets how OpenMP's threads wait, how many there are, and large pages, unless the user did."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    quota = cpu_quota()
    if quota is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(quota))))


def run_main(main: Callable[[], object]) -> None:
    """Runs a program's main function; Ctrl-C ends it with one line instead of a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(130)


def cpu_quota(cgroup: Path = _CGROUP) -> float | None:
    """Returns the processors that a container may use if they are fewer than it sees, else None.

    Args:
        cgroup: Folder with the limits of this process' control group; version 2, then 1.
    """
    limits = _read(cgroup / "cpu.max").split()
    if len(limits) != 2:
        quota, period = cgroup / "cpu" / "cpu.cfs_quota_us", cgroup / "cpu" / "cpu.cfs_period_us"
        limits = [_read(quota).strip(), _read(period).strip()]
    if not all(limit.isdecimal() and int(limit) > 0 for limit in limits):
        return None
    processors = int(limits[0]) / int(limits[1])
    return processors if processors < _num_visible() else None


def _num_visible() -> int:
    # Not every system can say which processors a process may run on.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


prepare()

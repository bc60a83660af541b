"""Runs a candidate program apart from this process, within limits, once it has been allowed.

What a program gets: an interpreter of its own, without this process's environment, open files,
standard input or output; an empty working directory that is removed afterwards; limits on processor
time, wall time, memory, the size of a file and the number of open files; no core dumps. When it has
ended, or its time is up, its whole process group is killed.

On Linux, where the kernel offers them (Landlock, and a filter of system calls; neither needs
rights), it can besides read nothing but the Python installation and the system's libraries, write
nothing but its working directory, start no process, signal no process and open no socket.
`Sandbox.missing` says what the machine at hand lacks of this.

What it does NOT guard against:

- A hole in the kernel. Programs share it; only a virtual machine or another computer does not.
- macOS: neither the memory nor the files that the user can read and write, nor the network. A
  process that leaves its group survives the time limit, if it could be started at all: as root the
  limit on processes has no effect. Linux without the two features is the same, but for memory.
- A program made to forge its verdict. Tests run in the candidate's interpreter, as they must to
  call it; one that searches memory for the report's secret, or redefines equality, can pass. Ending
  early, with any status, and printing whatever it likes do not.
- Many files of the permitted size filling the disk, or the processor being busy for the time
  allowed. The list of refused system calls is a list of known harm, not of everything harmless.
- Reading the Python installation, including other packages in it.

So: for answers of models that mean no harm. For others, run the whole evaluation in a container or
virtual machine that holds nothing of worth.
"""

import json
import math
import os
import secrets
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from eval.sandbox.code_runner import CodeRunner, Outcome
from eval.sandbox.system_calls import filter_program

JAIL = Path(__file__).with_name("jail.py")
MAX_REPORT_BYTES = 1 << 16
_SYSTEM_PATHS = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo",
    "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero",
)  # fmt: skip


@dataclass(frozen=True)
class Sandbox(CodeRunner):
    """Runs programs in a process of their own; see the module for what that guards against.

    Attributes:
        cpu_s: Processor time, in whole seconds.
        wall_s: Time on the clock, in seconds: for programs that wait.
        memory_bytes: Address space.
        file_bytes: Greatest size of a file.
    """

    cpu_s: int = 5
    wall_s: float = 15.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 22

    def __post_init__(self) -> None:
        if self.cpu_s < 1:
            raise ValueError(f"cpu_s is at least 1 second, got {self.cpu_s}.")
        if not 0 < self.wall_s < math.inf:
            raise ValueError(f"wall_s is a positive number of seconds, got {self.wall_s}.")
        if self.memory_bytes < 1 << 26:
            raise ValueError(
                f"memory_bytes is at least {1 << 26}, Python's own need, got {self.memory_bytes}."
            )
        if self.file_bytes < MAX_REPORT_BYTES:
            raise ValueError(f"file_bytes is at least {MAX_REPORT_BYTES}, got {self.file_bytes}.")

    def missing(self) -> tuple[str, ...]:
        """Returns what is not guarded here, of "memory", "files", "network", "processes".

        Raises:
            ValueError: If programs cannot be run here at all.
        """
        return _missing(self)

    def require_ready(self, name: str) -> None:
        """Runs a trial program.

        Raises:
            ValueError: If it does not pass.
        """
        self.missing()

    def run(self, candidate: str, tests: str) -> Outcome:
        """Runs a candidate and then, in the same namespace, its tests.

        The name of the module is not `__main__`, and hashes of text are the same in every run.

        Raises:
            RuntimeError: If the program could not be started, or the tests are no Python.
        """
        return self._outcome(*self._run(candidate, tests))

    def _run(self, candidate: str, tests: str) -> tuple[dict[str, object], int | None]:
        """Returns what was said at each stage reached, and the exit status; None if time is up."""
        nonce = secrets.token_hex(16)
        with (
            tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as job,
            tempfile.TemporaryFile() as report,
            tempfile.TemporaryFile() as complaint,
        ):
            job.write(json.dumps(self._job(candidate, tests, nonce)).encode())
            job.seek(0)
            status = run_alone(
                [sys.executable, "-S", "-s", "-P", "-B", str(JAIL)],
                folder, job, report, complaint, self.wall_s,
            )  # fmt: skip
            stages = _stages(report, nonce)
            if "ready" not in stages:
                complaint.seek(0)
                said = complaint.read()[-1000:].decode(errors="replace").strip().rpartition("\n")[2]
                got = "no start in time" if status is None else f"exit status {status}: {said}"
                raise RuntimeError(
                    f"A candidate needs a process that starts and tests that are Python, got {got}"
                )
        return stages, status

    def _job(self, candidate: str, tests: str, nonce: str) -> Mapping[str, object]:
        packages = site.getsitepackages()
        installation = {sys.base_prefix, sys.base_exec_prefix, *packages}
        return {
            "candidate": candidate,
            "tests": tests,
            "nonce": nonce,
            "packages": packages,
            "readable": [*sorted(installation), *_SYSTEM_PATHS],
            "filter": filter_program().hex(),
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "memory_bytes": self.memory_bytes,
            "file_bytes": self.file_bytes,
        }

    def _outcome(self, stages: Mapping[str, object], status: int | None) -> Outcome:
        compiled, loaded = "compiled" in stages, "loaded" in stages
        if "passed" in stages:
            return Outcome("passed", compiled, loaded, "")
        if status is None:
            return Outcome("timed out", compiled, loaded, f"more than {self.wall_s:g} s")
        if status == -signal.SIGXCPU:
            spent = f"more than {self.cpu_s} s of processor time"
            return Outcome("timed out", compiled, loaded, spent)
        if "failed" in stages:
            return Outcome("failed", compiled, loaded, str(stages["failed"]))
        ended = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
        return Outcome("failed", compiled, loaded, f"ended before its tests did, {ended}")


def run_alone(
    command: list[str],
    folder: str,
    given: IO[bytes],
    said: IO[bytes],
    complaint: IO[bytes],
    wall_s: float,
) -> int | None:
    """Runs a command in its own process group and leaves none of the group behind.

    Args:
        command: The program with its arguments.
        folder: Its working directory, home and place for temporary files.
        given: Its standard input.
        said: Its standard output.
        complaint: Its standard error.
        wall_s: Time on the clock, in seconds.

    Returns:
        The exit status, negative for a signal; None if the time was up.
    """
    # One thread: pools of numerical libraries reserve address space for each.
    environment = {
        "HOME": folder, "TMPDIR": folder, "PATH": os.defpath, "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        command, stdin=given, stdout=said, stderr=complaint, cwd=folder, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # None of the group may be left, which macOS calls a lack of permission.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _stages(report: IO[bytes], nonce: str) -> dict[str, object]:
    """Reads what was reported under this run's secret; a program may have written beside it."""
    report.seek(0)
    stages: dict[str, object] = {}
    for line in report.read(MAX_REPORT_BYTES).splitlines():
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and told.get("nonce") == nonce:
            stages[str(told.get("stage"))] = told.get("said")
    return stages


@cache
def _missing(sandbox: Sandbox) -> tuple[str, ...]:
    if os.name != "posix":
        raise ValueError(
            f"Programs are run on Linux and macOS, got {sys.platform}; use one of these."
        )
    try:
        stages, status = sandbox._run("answer = 6 * 7", "assert answer == 42")
    except RuntimeError as error:
        raise ValueError(f"A trial program did not run: {error}") from error
    outcome = sandbox._outcome(stages, status)
    if not outcome.passed:
        raise ValueError(
            f"A trial program passes within {sandbox!r}, got {outcome.reason}; raise the limits."
        )
    told = stages["ready"]
    assert isinstance(told, list)
    return tuple(told)

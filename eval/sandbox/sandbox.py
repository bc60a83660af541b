"""Runs a candidate program apart from this process, within limits, once it has been allowed.

What a program gets: an interpreter of its own, without this process's environment, open files,
standard input or output; an empty working directory that is removed afterwards; limits on processor
time, wall time, memory, the size of a file and the number of open files; no core dumps. When it has
ended, or its time is up, its whole process group is killed.

On Linux, where the kernel offers them (Landlock, and a filter of system calls; neither needs
rights), it can besides read nothing but the Python installation and the system's libraries, write
nothing but its working directory, start no process, signal no process and open no socket.
`Sandbox.missing` says what the machine at hand lacks of this.

If the evaluation itself is killed, so is the program, on Linux; elsewhere an alarm ends it, which
it can ignore.

What it does NOT guard against:

- A hole in the kernel. Programs share it; only a virtual machine or another computer does not.
- macOS: neither the memory nor the files that the user can read and write, nor the network. A
  process that leaves its group survives the time limit, if it could be started at all: as root the
  limit on processes has no effect. Linux without the two features is the same, but for memory.
- A program made to forge its verdict. Tests run in the candidate's interpreter, as they must to
  call it; one that walks up the frames of the interpreter or searches its memory for the report's
  secret, or redefines equality or a builtin that the tests call, can pass. Ending early, with any
  status, printing whatever it likes, emptying or reading what was reported, and replacing `exec` do
  not.
- Names, sizes, owners and times of any file: the kernel's file rules leave `stat` open.
- Many files of the permitted size filling the disk, or the processor being busy for the time
  allowed. The list of refused system calls is a list of known harm, not of everything harmless.
- Reading the Python installation, including other packages in it.
- A folder left behind in the temporary files if the evaluation was killed.

So: for answers of models that mean no harm. For others there is `eval.sandbox.container`, or run
the whole evaluation in a container or virtual machine that holds nothing of worth.
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
from eval.sandbox.folders import temporary_folder
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
            raise ValueError(f"cpu_s must be at least 1 second, got {self.cpu_s}.")
        if not 0 < self.wall_s < math.inf:
            raise ValueError(f"wall_s must be a positive number of seconds, got {self.wall_s}.")
        if self.memory_bytes < 1 << 26:
            raise ValueError(
                f"memory_bytes must be at least {1 << 26}, which Python itself needs, "
                f"got {self.memory_bytes}."
            )
        if self.file_bytes < MAX_REPORT_BYTES:
            raise ValueError(
                f"file_bytes must be at least {MAX_REPORT_BYTES}, got {self.file_bytes}."
            )

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
        with temporary_folder() as folder, tempfile.TemporaryFile() as job:
            job.write(json.dumps(self._job(candidate, tests, nonce)).encode())
            job.seek(0)
            command = [sys.executable, "-S", "-s", "-P", "-B", str(JAIL)]
            return report_of(command, folder, job, self.wall_s, nonce)

    def _job(self, candidate: str, tests: str, nonce: str) -> Mapping[str, object]:
        packages = site.getsitepackages()
        installation = {sys.base_prefix, sys.base_exec_prefix, *packages}
        return {
            "parent": os.getpid(),
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
        if status == -signal.SIGXCPU and "passed" not in stages:
            spent = f"more than {self.cpu_s} s of processor time"
            return Outcome("timed out", "compiled" in stages, "loaded" in stages, spent)
        return outcome_of(stages, status, f"more than {self.wall_s:g} s")


def outcome_of(stages: Mapping[str, object], status: int | None, limit: str) -> Outcome:
    """Returns what became of a program, from the stages it reached and its exit status.

    Args:
        stages: What was said at each.
        status: None if its time was up.
        limit: The reason in that case.
    """
    compiled, loaded = "compiled" in stages, "loaded" in stages
    if "passed" in stages:
        return Outcome("passed", compiled, loaded, "")
    if status is None:
        return Outcome("timed out", compiled, loaded, limit)
    if "failed" in stages:
        return Outcome("failed", compiled, loaded, str(stages["failed"]))
    ended = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
    return Outcome("failed", compiled, loaded, f"ended before its tests did, {ended}")


def report_of(
    command: list[str], folder: str, given: IO[bytes], wall_s: float, nonce: str
) -> tuple[dict[str, object], int | None]:
    """Runs a command that reports stages, and returns them with its exit status.

    Args:
        command: The program with its arguments.
        folder: Its working directory.
        given: Its standard input.
        wall_s: Time on the clock, in seconds.
        nonce: The secret that its report bears.

    Raises:
        RuntimeError: If it did not come as far as running a program.
    """
    # A pipe: a program can neither empty it nor read back the secret in it. Nobody needs to read
    # while the program runs, for what is reported is far less than what a pipe holds.
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as complaint:
            status = run_alone(command, folder, given, writer, complaint, wall_s)
            os.set_blocking(reader, False)
            with suppress(BlockingIOError):
                return _require_ready(_stages(os.read(reader, MAX_REPORT_BYTES), nonce),
                                      complaint, status)  # fmt: skip
            return _require_ready({}, complaint, status)
    finally:
        os.close(reader)
        os.close(writer)


def _require_ready(
    stages: dict[str, object], complaint: IO[bytes], status: int | None
) -> tuple[dict[str, object], int | None]:
    if "ready" not in stages:
        complaint.seek(0)
        said = complaint.read()[-1000:].decode(errors="replace").strip().rpartition("\n")[2]
        got = "no start in time" if status is None else f"exit status {status}: {said}"
        raise RuntimeError(
            f"A candidate needs a process that starts and tests that are Python, got {got}"
        )
    return stages, status


def run_alone(
    command: list[str],
    folder: str,
    given: IO[bytes],
    said: IO[bytes] | int,
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


def _stages(report: bytes, nonce: str) -> dict[str, object]:
    """Reads what was reported under this run's secret; a program may have written beside it."""
    stages: dict[str, object] = {}
    for line in report.splitlines():
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

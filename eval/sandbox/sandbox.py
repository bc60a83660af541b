"""Runs candidate programs in a sandbox of bubblewrap, podman or docker.

Each program gets an interpreter of its own, without this process's files, environment, network,
processes, standard input or output; an empty folder in memory to write to; limits on processor
time, wall time, memory, processes, open files and the size of a file; no core dumps. The sandbox
ends, with all processes in it, when the program has ended or its time is up, and bubblewrap's also
if the evaluation is killed. A container's own clock ends the container in that case.

The sandbox does not guard against:

- A hole in the kernel, which programs share.
- A program made to forge its verdict. Tests run in the candidate's interpreter; a candidate that
  walks up its frames or searches its memory for the secret words of the report, or redefines
  equality or a builtin that the tests call, can pass. Ending early, printing any text, emptying or
  reading the report, and replacing `exec` do not help.
- Reading the Python installation with all its packages, and the system's libraries.
- Many processes until the program's time is up, if bubblewrap is run by a root that cannot make
  namespaces outside a user namespace.
- An empty folder left among the temporary files if the evaluation is killed.
- A command of the user's own, which decides on everything but the limits of one process, and gets
  the few variables of the environment that podman and docker need.
"""

import os
import secrets
import shutil
import signal
import site
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eval.sandbox.code_runner import CodeRunner, Outcome
from eval.sandbox.runners import ENVIRONMENT, REMEDY, commands_of
from samplers.checks import require_count, require_positive

INSIDE = Path(__file__).with_name("inside.py")
STAGES = ("ready", "compiled", "loaded", "passed", "failed")
FILE_BYTES = 1 << 22
MAX_REPORT_BYTES = 1 << 16
MAX_COMPLAINT_BYTES = 300
# Variables by which podman and docker find their images, their settings and the service.
_KEPT = (
    "PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
)  # fmt: skip


@dataclass(frozen=True)
class Sandbox(CodeRunner):
    """Runs each program in a sandbox of its own; the module says what a sandbox guards against.

    Attributes:
        runner: "bwrap", "podman" or "docker", the latter two with ":IMAGE" for an image of one's
            own; "auto" for the first of these that works; or a command that starts Python 3.9 or
            later on Linux with its program on standard input, as on a shell's command line.
        cpu_s: Processor time, in whole seconds.
        wall_s: Time on the clock, in seconds: for programs that wait.
        start_s: Further time for the sandbox to start and to end, in seconds.
        memory_bytes: Address space.
    """

    runner: str = "auto"
    cpu_s: int = 5
    wall_s: float = 15.0
    start_s: float = 30.0
    memory_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        commands_of(self.runner, self.memory_bytes)
        require_count("cpu_s", self.cpu_s, 1, unit="seconds")
        if self.memory_bytes < 1 << 26:
            raise ValueError(
                f"memory_bytes must be at least {1 << 26}, which Python itself needs, got "
                f"{self.memory_bytes}."
            )
        require_positive("wall_s", self.wall_s, unit="a number of seconds")
        require_positive("start_s", self.start_s, unit="a number of seconds")

    def require_ready(self, name: str) -> None:
        """Raises ValueError if no runner passes a trial program."""
        _working_command(self)

    def run(self, candidate: str, tests: str) -> Outcome:
        """Runs a candidate and then, in the same namespace, its tests.

        Raises:
            ValueError: If no runner works here.
            RuntimeError: If the sandbox did not start, or the tests are no Python.
        """
        return self._run(_working_command(self), candidate, tests)

    def _run(self, command: Sequence[str], candidate: str, tests: str) -> Outcome:
        # Each stage has its own word, so that a program that reads its report learns no later word.
        words = {stage: secrets.token_hex(16) for stage in STAGES}
        job = {
            "candidate": candidate, "tests": tests, "words": words, "cpu_s": self.cpu_s,
            "wall_s": self.wall_s, "memory_bytes": self.memory_bytes,
            "file_bytes": FILE_BYTES, "packages": site.getsitepackages(),
        }  # fmt: skip
        inside = INSIDE.read_text(encoding="utf-8")
        program = f"{inside}\nmain({job!a})\n"
        report, end = _report_of(command, program, self.wall_s + self.start_s)
        stages = _read(report, words)
        if "ready" not in stages:
            raise RuntimeError(f"The sandbox must start and the tests must be Python, got {end}")
        passed = "passed" in stages
        unknown = "ended before its tests did, with its sandbox"
        reason = "" if passed else stages.get("failed", unknown)
        return Outcome("compiled" in stages, "loaded" in stages, passed, reason)


def _report_of(command: Sequence[str], program: str, limit_s: float) -> tuple[bytes, str]:
    """Runs a command in a process group and an empty folder of its own, and ends the whole group.

    Returns:
        The report, and how the command ended, with the last words of its standard error.
    """
    environment = {key: os.environ[key] for key in _KEPT if key in os.environ}
    with (
        tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as program_file,
        tempfile.TemporaryFile() as complaint,
    ):
        program_file.write(program.encode())
        program_file.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=program_file, stdout=subprocess.PIPE, stderr=complaint, cwd=folder,
                env={**ENVIRONMENT, **environment}, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise RuntimeError(f"The sandbox must start, got {error}") from error
        end = _end_of(process, limit_s)
        complaint.seek(max(0, complaint.seek(0, os.SEEK_END) - MAX_COMPLAINT_BYTES))
        last_words = " ".join(complaint.read().decode(errors="replace").split())
        # The pipe has room for every report, so it is read only now. A program that floods the pipe
        # waits until its time is up. A process in another session may hold the pipe open.
        assert process.stdout is not None
        with process.stdout as report:
            os.set_blocking(report.fileno(), False)
            return report.read(MAX_REPORT_BYTES) or b"", f"{end}: {last_words}"


def _end_of(process: subprocess.Popen[bytes], limit_s: float) -> str:
    try:
        return f"exit status {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:g} s"
    finally:
        # The group may have no process left, which macOS reports as a lack of permission.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(report: bytes, words: Mapping[str, str]) -> dict[str, str]:
    """Reads the stages reported under secret words; a program may have written other lines."""
    stage_of = {word: stage for stage, word in words.items()}
    stages: dict[str, str] = {}
    for line in report.decode(errors="replace").split("\n"):
        word, _, reason = line.partition(" ")
        if word in stage_of:
            # A program that reported its failure has also ended early: the first reason counts.
            stages.setdefault(stage_of[word], reason)
    return stages


@cache
def _working_command(sandbox: Sandbox) -> list[str]:
    """Returns the first command of a sandbox that passes a trial program."""
    wrong = {}
    for command in commands_of(sandbox.runner, sandbox.memory_bytes):
        if shutil.which(command[0]) is None:
            wrong[command[0]] = "not installed"
            continue
        try:
            outcome = sandbox._run(command, "answer = 6 * 7", "assert answer == 42")
        except RuntimeError as error:
            wrong[command[0]] = str(error)
            continue
        if outcome.passed:
            return command
        wrong[command[0]] = f"a trial program failed within {sandbox!r}: {outcome.reason}"
    got = "; ".join(f"{program}: {reason}" for program, reason in wrong.items())
    raise ValueError(
        f"Programs that a model wrote need a sandbox that works on this machine, got none ({got}). "
        f"Either {REMEDY}."
    )

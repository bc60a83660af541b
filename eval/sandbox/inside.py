"""Runs one program within limits, inside the sandbox, and reports each stage that it reached.

`eval.sandbox.sandbox` sends this text to an interpreter in the sandbox. It imports nothing but the
standard library. A stage is a line on standard output.
"""

import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

NAME = "solution"
CANDIDATE, TESTS = "<candidate>", "<tests>"
MAX_REASON = 300
NOBODY = 65534


class StageReport:
    """Reports stages, each with the secret word of that stage."""

    def __init__(self, words: dict[str, str]) -> None:
        # Bound now, because the program may rebind the functions of its modules.
        self._words, self._file, self._write = words, os.dup(1), os.write

    def __call__(self, stage: str, reason: str = "") -> None:
        line = f"{self._words[stage]} {reason}\n"
        self._write(self._file, line.encode(errors="backslashreplace"))


def main(job: dict[str, Any]) -> None:
    """Runs the program in a child and ends when the child has ended, or its time is up.

    In a sandbox this process is the first of its namespace, so that its end ends all others.
    """
    tests = compile(job["tests"], TESTS, "exec", dont_inherit=True)
    report = StageReport(job["words"])
    report("ready")
    # Standard input may be a file that still holds the secret words.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    child = os.fork()
    if child == 0:
        limit_resources(job)
        run(job, tests, report)
    signal.signal(signal.SIGALRM, raise_timeout)
    try:
        signal.setitimer(signal.ITIMER_REAL, job["wall_s"])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except TimeoutError:
        # Root may lack the right to kill another user's process; the end of this one ends it too.
        with suppress(PermissionError):
            os.kill(child, signal.SIGKILL)
        reason = f"more than {job['wall_s']:g} s"
    else:
        reason = reason_of_end(status, job)
    # The program may have filled the pipe, which nobody reads yet: try for at most 1 s.
    signal.setitimer(signal.ITIMER_REAL, 1)
    report("failed", reason)
    os._exit(0)


def reason_of_end(status: int, job: dict[str, Any]) -> str:
    """Returns why a program ended before it reported its own end."""
    if status == -signal.SIGXCPU:
        return f"more than {job['cpu_s']} s of processor time"
    ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"ended before its tests did, {ended}"


def raise_timeout(*_: object) -> None:
    """Raises TimeoutError, as the handler of a signal."""
    raise TimeoutError


def run(job: dict[str, Any], tests: CodeType, report: StageReport) -> None:
    """Runs the candidate and then its tests, reports each stage, and ends the process."""
    # Bound before the candidate runs: with another `builtins.exec` no test would be run.
    execute, explain, leave = exec, reason_of, os._exit
    # Not `__main__`: the part of a file that only runs as a script is not part of the answer.
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    sys.path += job["packages"]
    try:
        code = compile(job["candidate"], CANDIDATE, "exec", dont_inherit=True)
        report("compiled")
        execute(code, module.__dict__)
        report("loaded")
        execute(tests, module.__dict__)
    # Every exception of a stranger's program is its result, SystemExit included.
    except BaseException as error:
        report("failed", explain(error))
        leave(1)
    report("passed")
    leave(0)


def reason_of(error: BaseException) -> str:
    """Returns type and message of an error, and the line of the tests that led to it."""
    message = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == TESTS]
    return message[:MAX_REASON] + (f" (line {lines[-1]} of the tests)" if lines else "")


def limit_resources(job: dict[str, Any]) -> None:
    """Applies the limits of one process, and gives up the rights of root in a sandbox."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_NPROC, 64)
    limit(resource.RLIMIT_CPU, job["cpu_s"], job["cpu_s"] + 1)
    limit(resource.RLIMIT_AS, job["memory_bytes"])
    # Root is exempt from the limit on processes. The parent is number 1 only in a sandbox; there
    # it may lack the right to become another user.
    if os.getppid() == 1 and os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)


def limit(which: int, soft: int, hard: int | None = None) -> None:
    """Lowers a limit of this process, as far as the system allows it."""
    ceiling = resource.getrlimit(which)[1]
    wanted = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        wanted = [min(value, ceiling) for value in wanted]
    with suppress(ValueError, OSError):
        resource.setrlimit(which, (wanted[0], wanted[1]))

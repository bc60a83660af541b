"""The inside of the sandbox: a script that shuts itself in, then runs one program.

`eval.sandbox.sandbox` starts it in a process of its own and says there what it guards against;
`eval.sandbox.container` sends its text into a container. It imports nothing but the standard
library. How far a program came goes, a line of JSON a stage, to what was standard output.
"""

import ctypes
import json
import math
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NAME = "solution"
CANDIDATE, TESTS = "<candidate>", "<tests>"
MAX_REASON = 300
OUT_OF_TIME = 152

# <linux/prctl.h>, <linux/seccomp.h>
_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2

# <linux/landlock.h>: calls, then rights of files. Later versions of the kernel know more rights.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS = (1 << 16) - 1
_TCP = 0b11
_SCOPED = 0b11


def main() -> None:
    """Reads the job from standard input, shuts this process in and runs the program."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    sys.path += job["packages"]
    judge(job, shut_in)


def main_in_container(job: dict[str, Any]) -> None:
    """Runs the program in a child and ends when it ends or its time is up.

    In a container this process is the first: nothing inside can end it, and its end ends the rest.
    """
    child = os.fork()
    if child == 0:
        judge(job, limit_resources)
    deadline = time.monotonic() + job["wall_s"]
    ended, status = 0, 0
    while ended == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    if ended == 0:
        os.kill(child, signal.SIGKILL)
        os._exit(OUT_OF_TIME)
    code = os.waitstatus_to_exitcode(status)
    os._exit(OUT_OF_TIME if code in (-signal.SIGXCPU, -signal.SIGALRM) else code % 256)


def judge(job: dict[str, Any], shut: Callable[[dict[str, Any]], list[str]]) -> None:
    """Applies limits, runs the program, tells how far it came and ends the process."""
    # Bound now: the program may rebind what its modules call.
    report, write, leave, dumps, nonce = os.dup(1), os.write, os._exit, json.dumps, job["nonce"]

    def tell(stage: str, said: object = None) -> None:
        line = dumps({"nonce": nonce, "stage": stage, "said": said})
        write(report, line.encode() + b"\n")

    tests = compile(job["tests"], TESTS, "exec", dont_inherit=True)
    missing = shut(job)
    nowhere = os.open(os.devnull, os.O_RDWR)
    tell("ready", missing)
    for stream in range(3):
        os.dup2(nowhere, stream)
    leave(run(job["candidate"], tests, tell))


def run(candidate: str, tests: Any, tell: Callable[..., None]) -> int:
    """Runs the candidate and then its tests; tells each stage that was reached."""
    # Bound before the candidate runs: with another `builtins.exec` no test would be run.
    execute, explain = exec, reason_of
    # Not `__main__`: what a file does only as a script is no part of the answer.
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        code = compile(candidate, CANDIDATE, "exec", dont_inherit=True)
        tell("compiled")
        execute(code, module.__dict__)
        tell("loaded")
        execute(tests, module.__dict__)
    # The one place where whatever a stranger's program raises is the result, SystemExit included.
    except BaseException as error:
        tell("failed", explain(error))
        return 1
    tell("passed")
    return 0


def reason_of(error: BaseException) -> str:
    """Returns type and message of an error, and the line of the tests that it came through."""
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == TESTS
    ]
    return said[:MAX_REASON] + (f" (line {lines[-1]} of the tests)" if lines else "")


def limit_resources(job: dict[str, Any]) -> list[str]:
    """Applies the limits that every system has and returns what they leave open."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CPU, job["cpu_s"], job["cpu_s"] + 1)
    signal.alarm(math.ceil(job["wall_s"]) + 1)
    # macOS may take this limit and not keep it.
    is_guarded = limit(resource.RLIMIT_AS, job["memory_bytes"]) and sys.platform == "linux"
    return [] if is_guarded else ["memory"]


def shut_in(job: dict[str, Any]) -> list[str]:
    """Applies every limit there is and returns what this machine cannot guard."""
    missing = limit_resources(job)
    guarded = {"files": False}
    filtered = False
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        end_with_parent(libc, job["parent"])
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        guarded["files"] = shut_files(libc, job["readable"])
        filtered = refuse_calls(libc, bytes.fromhex(job["filter"]))
    guarded["network"] = filtered
    # Root is exempt from this limit, and threads count as well, so it comes second.
    guarded["processes"] = filtered or (limit(resource.RLIMIT_NPROC, 1) and os.geteuid() != 0)
    return missing + [name for name, is_guarded in guarded.items() if not is_guarded]


def end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Has the kernel kill this process when its parent is gone; an alarm can be ignored."""
    libc.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    # The parent may have ended before it was asked for.
    if os.getppid() != parent:
        os._exit(1)


def limit(which: int, soft: int, hard: int | None = None) -> bool:
    """Lowers a limit of this process and says whether the system took it."""
    ceiling = resource.getrlimit(which)[1]
    wanted = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        wanted = [min(value, ceiling) for value in wanted]
    try:
        resource.setrlimit(which, (wanted[0], wanted[1]))
    except (ValueError, OSError):
        return False
    return True


def refuse_calls(libc: ctypes.CDLL, program: bytes) -> bool:
    """Installs a filter of system calls and says whether the kernel took it."""
    if not program:
        return False
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, described, 0, 0) == 0)


def shut_files(libc: ctypes.CDLL, readable: Sequence[str]) -> bool:
    """Leaves the working directory, and the given paths for reading; says whether it could."""

    def call(number: int, *arguments: object) -> int:
        return int(libc.syscall(ctypes.c_long(number), *arguments))

    version = call(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = _RIGHTS_BY_VERSION.get(version, _RIGHTS)
    handled = struct.pack("=QQQ", rights, _TCP, _SCOPED)
    handled = handled[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    allowed = dict.fromkeys(readable, _READ_FILE | _READ_FOLDER)
    allowed[os.devnull] = _READ_FILE | _WRITE_FILE | _TRUNCATE
    allowed[os.getcwd()] = rights
    of_a_file = _READ_FILE | _WRITE_FILE | _TRUNCATE
    for path, wanted in allowed.items():
        if os.path.exists(path):
            opened = os.open(path, os.O_PATH)
            granted = wanted & rights & (rights if os.path.isdir(path) else of_a_file)
            rule = struct.pack("=Qi", granted, opened)
            if call(_ADD_RULE, rules, _BENEATH, rule, 0) != 0:
                return False
            os.close(opened)
    shut = call(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return shut


if __name__ == "__main__":
    main()

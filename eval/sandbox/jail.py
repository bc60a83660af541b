"""The inside of the sandbox: a script that shuts itself in, then runs one program.

`eval.sandbox.sandbox` starts it in a process of its own and says there what it guards against.
It imports nothing but the standard library. Its job comes from standard input; how far it came
goes, a line of JSON a stage, to what was standard output.
"""

import ctypes
import json
import math
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NAME = "solution"
CANDIDATE, TESTS = "<candidate>", "<tests>"
MAX_REASON = 300

# <linux/prctl.h>, <linux/seccomp.h>
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2

# <linux/landlock.h>: calls, then rights of files. Later versions of the kernel know more rights.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS = (1 << 16) - 1
_TCP = 0b11
_SCOPED = 0b11


def main() -> None:
    """Reads the job, shuts this process in, runs the program and ends the process."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    # Bound now: the program may rebind what its modules call.
    report, write, leave, dumps = os.dup(1), os.write, os._exit, json.dumps

    def tell(stage: str, said: object = None) -> None:
        line = dumps({"nonce": job["nonce"], "stage": stage, "said": said})
        write(report, line.encode() + b"\n")

    tests = compile(job["tests"], TESTS, "exec", dont_inherit=True)
    sys.path += job["packages"]
    missing = shut_in(job)
    nowhere = os.open(os.devnull, os.O_RDWR)
    tell("ready", missing)
    for stream in range(3):
        os.dup2(nowhere, stream)
    leave(run(job["candidate"], tests, tell))


def run(candidate: str, tests: Any, tell: Callable[..., None]) -> int:
    """Runs the candidate and then its tests; tells each stage that was reached."""
    # Not `__main__`: what a file does only as a script is no part of the answer.
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        code = compile(candidate, CANDIDATE, "exec", dont_inherit=True)
        tell("compiled")
        exec(code, module.__dict__)
        tell("loaded")
        exec(tests, module.__dict__)
    # The one place where whatever a stranger's program raises is the result, SystemExit included.
    except BaseException as error:
        tell("failed", reason_of(error))
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


def shut_in(job: dict[str, Any]) -> list[str]:
    """Applies every limit there is and returns what this machine cannot guard."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CPU, job["cpu_s"], job["cpu_s"] + 1)
    # If the parent is killed, nobody else ends a program that sleeps.
    signal.alarm(math.ceil(job["wall_s"]) + 1)
    # macOS may take this limit and not keep it.
    is_linux = sys.platform == "linux"
    guarded = {"memory": limit(resource.RLIMIT_AS, job["memory_bytes"]) and is_linux}
    if is_linux:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        guarded["files"] = shut_files(libc, job["readable"])
        filtered = refuse_calls(libc, bytes.fromhex(job["filter"]))
    else:
        guarded["files"] = filtered = False
    guarded["network"] = filtered
    # Root is exempt from this limit, and threads count as well, so it comes second.
    guarded["processes"] = filtered or (limit(resource.RLIMIT_NPROC, 1) and os.geteuid() != 0)
    return [name for name, is_guarded in guarded.items() if not is_guarded]


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

"""Runs candidate programs in a container of the user's choice, for those who want a real wall.

The user gives the command that starts a Python interpreter in a container, reading its program from
standard input, such as

    podman run --rm -i --network none --read-only --tmpfs /tmp --memory 1g --pids-limit 64
        docker.io/library/python:3.12-slim python3 -

What the wall holds is the command's affair: without `--network none` a program has the network.
Time, processor time, memory and the size of a file are limited inside as in `eval.sandbox.sandbox`,
which also says how a program can forge its verdict: a container does not change that.
"""

import json
import math
import secrets
import shlex
import shutil
import tempfile
from dataclasses import dataclass

from eval.sandbox.code_runner import CodeRunner, Outcome
from eval.sandbox.folders import temporary_folder
from eval.sandbox.jail import OUT_OF_TIME
from eval.sandbox.sandbox import JAIL, MAX_REPORT_BYTES, outcome_of, report_of


@dataclass(frozen=True)
class Container(CodeRunner):
    """Runs each program in a container of its own.

    Attributes:
        command: What starts Python 3.8 or later on Linux with its program on standard input, as on
            a shell's command line.
        cpu_s: Processor time of a program, in whole seconds.
        wall_s: Time on the clock of a program, in seconds.
        start_s: What the container may take besides, to start and to end.
        memory_bytes: Address space.
        file_bytes: Greatest size of a file.
    """

    command: str
    cpu_s: int = 5
    wall_s: float = 15.0
    start_s: float = 30.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 22

    def __post_init__(self) -> None:
        if not self._words:
            raise ValueError(f"command must start a Python interpreter, got {self.command!r}.")
        if self.cpu_s < 1:
            raise ValueError(f"cpu_s must be at least 1 second, got {self.cpu_s}.")
        for name, value in (("wall_s", self.wall_s), ("start_s", self.start_s)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, got {value}.")
        if self.memory_bytes < 1 << 26:
            raise ValueError(f"memory_bytes must be at least {1 << 26}, got {self.memory_bytes}.")
        if self.file_bytes < MAX_REPORT_BYTES:
            raise ValueError(
                f"file_bytes must be at least {MAX_REPORT_BYTES}, got {self.file_bytes}."
            )

    @property
    def _words(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise ValueError(
                f"command must be quoted as in a shell, got {self.command!r} ({error})."
            ) from error

    def require_ready(self, name: str) -> None:
        """Runs a trial program.

        Raises:
            ValueError: If it does not pass.
        """
        words = self._words
        if shutil.which(words[0]) is None:
            raise ValueError(
                f"The command that runs the programs of {name} must be installed, "
                f"got {words[0]!r}, which is not found."
            )
        try:
            outcome = self.run("answer = 6 * 7", "assert answer == 42")
        except RuntimeError as error:
            raise ValueError(
                f"A trial program of {name} must pass in {self.command!r}, got: {error}; the "
                "command must start Python with its program on standard input, such as "
                "'podman run --rm -i --network none python:3.12-slim python3 -'."
            ) from error
        if not outcome.passed:
            raise ValueError(
                f"A trial program of {name} must pass within {self!r}, got {outcome.reason}; "
                "raise the limits."
            )

    def run(self, candidate: str, tests: str) -> Outcome:
        """Runs a candidate and then, in the same namespace, its tests, in a new container.

        Raises:
            RuntimeError: If the container did not start, or the tests are no Python.
        """
        nonce = secrets.token_hex(16)
        with temporary_folder() as folder, tempfile.TemporaryFile() as program:
            program.write(self._program(candidate, tests, nonce).encode())
            program.seek(0)
            stages, status = report_of(
                self._words, folder, program, self.wall_s + self.start_s, nonce
            )
        is_late = status in (None, OUT_OF_TIME) and "failed" not in stages
        limit = f"more than {self.wall_s:g} s, or {self.cpu_s} s of processor time"
        return outcome_of(stages, None if is_late else status, limit)

    def _program(self, candidate: str, tests: str, nonce: str) -> str:
        """Returns the text of the inside with the job in it; it must not run as a script itself."""
        job = {
            "candidate": candidate, "tests": tests, "nonce": nonce, "cpu_s": self.cpu_s,
            "wall_s": self.wall_s, "memory_bytes": self.memory_bytes,
            "file_bytes": self.file_bytes,
        }  # fmt: skip
        inside = JAIL.read_text(encoding="utf-8")
        return f"__name__ = 'jail'\n{inside}\nmain_in_container(json.loads({json.dumps(job)!r}))\n"

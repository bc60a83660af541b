"""A process that compiles constraints, so that neither the model nor the server waits for it."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields

import torch

from dllm_decode.core.automaton import Automaton
from dllm_decode.text.constraints import Constraint, Vocabulary, build_automaton

_MEMORY_BYTES = 8 << 30

# The process looks for modules where this one does, whatever program started this one.
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from dllm_decode.serve.compiler_process import compile_until_closed; compile_until_closed()"
)


class CompilerProcess:
    """Compiles one constraint after another in a process, which is started when it is needed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Takes the function that reads the texts of the model's tokens."""
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, read: Callable[[], Constraint]) -> Automaton:
        """Returns the automaton of the constraint that `read` returns.

        Raises:
            ValueError: If there is no such automaton, or if the process ends.
        """
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
            self._send(self._vocabulary())
        self._send(read)
        assert self._process.stdout is not None
        try:
            reply = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise ValueError(
                f"A constraint must be compiled within {_MEMORY_BYTES >> 30} GiB of memory. Make "
                "the constraint smaller."
            ) from None
        if isinstance(reply, str):
            raise ValueError(reply)
        return Automaton(*map(torch.from_numpy, reply))

    def end(self) -> None:
        """Ends the process, if it runs; what it compiles now is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _send(self, value: object) -> None:
        """Sends a value to the process; one that has ended reads nothing."""
        content = pickle.dumps(value)
        with suppress(OSError):
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(content)
            self._process.stdin.flush()


def compile_until_closed() -> None:
    """Reads a vocabulary, then constraints until the input is closed, and writes each automaton.

    An automaton is written as its parts. Where there is none, the reason is written.
    """
    pipe, sys.stdout = sys.stdout.buffer, sys.stderr
    torch.set_num_threads(1)
    # Not on Windows.
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    vocabulary: Vocabulary = pickle.load(sys.stdin.buffer)
    with suppress(EOFError):
        while True:
            read: Callable[[], Constraint] = pickle.load(sys.stdin.buffer)
            try:
                automaton = build_automaton(read(), vocabulary)
                parts = [getattr(automaton, field.name).numpy() for field in fields(Automaton)]
                pickle.dump(parts, pipe)
            except (ValueError, OverflowError, RecursionError) as error:
                pickle.dump(str(error), pipe)
            pipe.flush()

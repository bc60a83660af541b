"""Runs programs that a model wrote, or refuses to without the user's permission."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True)
class Outcome:
    """The result of running a program.

    Attributes:
        compiled: The program is valid Python.
        loaded: The program ran to its end, before the tests.
        passed: The last line of the tests was reached.
        reason: Why the program did not pass; empty if it passed.
    """

    compiled: bool
    loaded: bool
    passed: bool
    reason: str


class CodeRunner(ABC):
    """Runs the programs that a model wrote, or refuses to run them."""

    @abstractmethod
    def require_ready(self, name: str) -> None:
        """Raises ValueError if programs of the task `name` cannot be run here."""

    @abstractmethod
    def run(self, candidate: str, tests: str) -> Outcome:
        """Runs a candidate and then, in the same namespace, its tests."""


@dataclass(frozen=True)
class NoCode(CodeRunner):
    """Refuses to run programs, because the user has not allowed it."""

    def require_ready(self, name: str) -> NoReturn:
        raise ValueError(
            f"{name} is scored by running programs that the model wrote, which needs your "
            "permission, got none; give --allow-code to run or sweep, in Python sandbox=Sandbox() "
            "to the task. The docstring of eval/sandbox/sandbox.py says what it guards against and "
            "what it does not."
        )

    def run(self, candidate: str, tests: str) -> Outcome:
        self.require_ready("This task")


NO_CODE = NoCode()

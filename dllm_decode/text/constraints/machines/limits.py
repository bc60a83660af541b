"""Bounds of the work that building one automaton may take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

MAX_STATES = 20_000
"""States of the automaton of a constraint over bytes, at most."""

MAX_BUILT = 3 * MAX_STATES
"""States of an automaton before equal states are merged, at most."""

_MAX_BYTES = 1 << 30


class TooLargeError(ValueError):
    """An automaton would take more states, memory or processor time than it may."""


@dataclass
class _Work:
    """The work for one constraint.

    Attributes:
        until_s: Processor time of the thread at which the work must be done.
        bytes_left: Bytes that further tables may have.
    """

    until_s: float
    bytes_left: int = _MAX_BYTES


# Empties the caches of functions that are called once for the same arguments.
_FORGET: list[Callable[[], None]] = []
_WORK: ContextVar[_Work | None] = ContextVar("_WORK", default=None)


@contextmanager
def processor_limit(limit_s: float) -> Iterator[None]:
    """Bounds the processor seconds, and the bytes of tables, of the work in a `with` block."""
    token = _WORK.set(_Work(time.thread_time() + limit_s))
    try:
        yield
    finally:
        _WORK.reset(token)
        for forget in _FORGET:
            forget()


def require_states(num_states: int, most: int = MAX_BUILT) -> None:
    """Raises TooLargeError if there are too many states, or no time is left."""
    if num_states > most:
        raise TooLargeError(f"more than {most} states")
    work = _WORK.get()
    if work is not None and time.thread_time() > work.until_s:
        raise TooLargeError("more processor time than the limit")


def require_bytes(num_bytes: int) -> None:
    """Raises TooLargeError if the tables have too many bytes together with this one."""
    work = _WORK.get()
    if work is not None:
        work.bytes_left -= num_bytes
    if num_bytes > _MAX_BYTES or (work is not None and work.bytes_left < 0):
        raise TooLargeError(f"tables of more than {_MAX_BYTES >> 20} MiB")


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Returns a function whose results are kept, by its arguments, until some work is done."""
    kept = cache(function)
    _FORGET.append(kept.cache_clear)
    return cast(Callable[P, T], kept)

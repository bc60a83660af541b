"""Warnings that name a line of the user's own program."""

import sys
import warnings

from samplers.expression import PACKAGES

# torch's decorators are frames between ours.
_PASSED_OVER = (*PACKAGES, "torch")


def warn_user(message: str) -> None:
    """Gives a warning that names the line which called into this distribution.

    Frames cannot be counted by hand, because callers differ, and because a list comprehension is
    a frame on Python 3.11 alone; Python 3.12 has `skip_file_prefixes`.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package_of(frame.f_globals) in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _package_of(names: dict[str, object]) -> str:
    """Returns the top package of a module, by the module's names."""
    return str(names.get("__name__", "")).partition(".")[0]

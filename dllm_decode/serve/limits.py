"""Bounds of the server."""

from dataclasses import dataclass, fields
from itertools import pairwise

from samplers.checks import require_finite_non_negative, require_integer, require_positive


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that keep one client from stopping the others.

    Attributes:
        num_rows: Rows of one batch, at most.
        max_length: Tokens of a prompt and its answer together, at most.
        max_tokens: Tokens of an answer, at most.
        gen_length: Tokens of an answer if the request does not say.
        max_waiting: Answers that wait for a row, at most; more are refused with status 429.
        deadline_s: Seconds after which a request is given up.
        grace_s: Seconds, rounded up, that running requests have once the server is told to end.

    Raises:
        ValueError: If a bound is outside its range, or two do not fit together.
    """

    num_rows: int = 8
    max_length: int = 4096
    max_tokens: int = 1024
    gen_length: int = 256
    max_waiting: int = 256
    deadline_s: float = 600.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                require_integer(field.name, getattr(self, field.name), least=1)
            else:
                require_finite_non_negative(field.name, getattr(self, field.name))
        require_positive("deadline_s", self.deadline_s, unit="a number of seconds")
        for less, more in pairwise(("gen_length", "max_tokens", "max_length")):
            if getattr(self, less) > getattr(self, more):
                raise ValueError(
                    f"{less} must be at most {more}={getattr(self, more)}, "
                    f"got {getattr(self, less)}."
                )

    def length_for(self, own: int | None) -> int:
        """Returns the most tokens of a prompt with its answer; `own` is the model's limit."""
        return self.max_length if own is None else min(self.max_length, own)

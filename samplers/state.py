"""States of plug-ins: which kinds are allowed, and how rows are taken, put and merged."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

if TYPE_CHECKING:
    # A default for a type variable is Python 3.13's. Type checkers know it without the package.
    from typing_extensions import TypeVar

    SamplerState = TypeVar("SamplerState", bound=Tensor | tuple[Any, ...] | None, default=Any)
else:
    from typing import TypeVar

    SamplerState = TypeVar("SamplerState")

_ALLOWED = (
    "None, a tensor, or a tuple of such; the first axis of each tensor must be the batch, so that "
    "rows can be taken"
)


def map_state(function: Callable[..., Tensor], *states: Any) -> Any:
    """Applies a function to the corresponding tensors of states; returns the results as a state."""
    first = states[0]
    if isinstance(first, tuple):
        parts = [map_state(function, *group) for group in zip(*states, strict=True)]
        return _tuple_like(first, parts)
    return None if first is None else function(*states)


def take_state(state: SamplerState, rows: Int[Tensor, " N"]) -> SamplerState:
    """Returns some rows of a state."""
    return cast(SamplerState, map_state(lambda part: part[rows], state))


def put_state(state: SamplerState, rows: Int[Tensor, " N"], part: SamplerState) -> SamplerState:
    """Returns a state with some rows replaced; `rows` must ascend."""

    def put(old: Tensor, new: Tensor) -> Tensor:
        return new if len(rows) == len(old) else old.index_copy(0, rows, new)

    return cast(SamplerState, map_state(put, state, part))


def merge_state(old: SamplerState, new: SamplerState, is_new: Bool[Tensor, " B"]) -> SamplerState:
    """Returns a state with rows of the new state where `is_new`, and of the old one elsewhere."""

    def merge(old_part: Tensor, new_part: Tensor) -> Tensor:
        return torch.where(is_new.view(-1, *[1] * (old_part.ndim - 1)), new_part, old_part)

    return cast(SamplerState, map_state(merge, old, new))


def pad_state(state: SamplerState, num_rows: int) -> SamplerState:
    """Returns a state with `num_rows` further rows of zeros."""

    def pad(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(num_rows, *rows.shape[1:])])

    return cast(SamplerState, map_state(pad, state))


def require_state(state: object, num_rows: int, *, owner: object) -> None:
    """Raises RuntimeError unless rows of a state can be taken, so that rows can leave and join.

    Args:
        state: The state that a plug-in returned.
        num_rows: Rows of the view or of the decode, B.
        owner: The plug-in, for the message.
    """
    wrong = _wrong_part(state, num_rows)
    if wrong:
        raise RuntimeError(f"The state of {owner!r} must be {_ALLOWED}, got {wrong}.")


def same_structure(one: object, other: object) -> bool:
    """Returns whether two states have the same structure, dtypes, and shapes but for B."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
    if isinstance(one, tuple) and isinstance(other, tuple):
        is_alike = type(one) is type(other) and len(one) == len(other)
        return is_alike and all(map(same_structure, one, other))
    return one is None and other is None


def _wrong_part(state: object, num_rows: int) -> str:
    """Describes the first part that is not allowed; empty if all are."""
    if isinstance(state, Tensor):
        fits = state.ndim > 0 and len(state) == num_rows
        return "" if fits else f"a tensor of shape {tuple(state.shape)} for {num_rows} rows"
    if state is None:
        return ""
    if not isinstance(state, tuple):
        return f"a {type(state).__name__}"
    names = getattr(type(state), "_fields", range(len(state)))
    for name, part in zip(names, state, strict=True):
        wrong = _wrong_part(part, num_rows)
        if wrong:
            return f"{wrong} in its field {name!r}"
    return ""


def _tuple_like(state: tuple[Any, ...], parts: list[Any]) -> Any:
    """Puts parts into a tuple of the same type."""
    return type(state)(*parts) if hasattr(type(state), "_fields") else tuple(parts)

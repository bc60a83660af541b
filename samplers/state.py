"""States of samplers: which kinds are allowed, and how rows are taken, put and merged."""

from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

if TYPE_CHECKING:
    # A default for a type variable is Python 3.13's. Type checkers know it without the package.
    from typing_extensions import TypeVar

    State = TypeVar("State", bound=Tensor | tuple[Any, ...] | None, default=Any)
else:
    from typing import TypeVar

    State = TypeVar("State")

_ALLOWED = (
    "None, a tensor, or a NamedTuple of such; the first axis of each tensor must be the batch, so "
    "that rows can be taken"
)


def take_state(state: State, rows: Int[Tensor, " N"]) -> State:
    """Returns some rows of a state."""
    if state is None:
        return state
    if isinstance(state, tuple):
        return cast(State, _like(state, [take_state(part, rows) for part in state]))
    return cast(State, state[rows])


def put_state(state: State, rows: Int[Tensor, " N"], part: State) -> State:
    """Returns a state with some rows replaced, in ascending order of rows."""
    if state is None:
        return state
    if isinstance(state, tuple):
        pairs = zip(state, cast(tuple[Any, ...], part), strict=True)
        return cast(State, _like(state, [put_state(old, rows, new) for old, new in pairs]))
    new = cast(Tensor, part)
    return cast(State, new if len(rows) == len(state) else state.index_copy(0, rows, new))


def merge_state(old: State, new: State, is_new: Bool[Tensor, " B"]) -> State:
    """Returns a state whose rows come from a new one where `is_new`, else from an old one."""
    if old is None:
        return old
    if isinstance(old, tuple):
        pairs = zip(old, cast(tuple[Any, ...], new), strict=True)
        return cast(State, _like(old, [merge_state(a, b, is_new) for a, b in pairs]))
    kept, fresh = cast(Tensor, old), cast(Tensor, new)
    where = is_new.view(-1, *[1] * (kept.ndim - 1))
    return cast(State, torch.where(where, fresh, kept))


def pad_state(state: State, num_rows: int) -> State:
    """Returns a state with zeros for further rows."""
    if state is None:
        return state
    if isinstance(state, tuple):
        return cast(State, _like(state, [pad_state(part, num_rows) for part in state]))
    rows = cast(Tensor, state)
    return cast(State, torch.cat([rows, rows.new_zeros(num_rows, *rows.shape[1:])]))


def check_state(state: object, num_rows: int, *, owner: object) -> None:
    """Raises RuntimeError if rows of a state cannot be taken, because rows leave and join.

    Args:
        state: The state that `Sampler.init` or `Sampler.step` returned.
        num_rows: Rows of the view, B.
        owner: The sampler, for the message.
    """
    wrong = _wrong_part(state, num_rows)
    if wrong:
        raise RuntimeError(f"The state of {owner!r} must be {_ALLOWED}, got {wrong}.")


def same_structure(one: object, other: object) -> bool:
    """Returns whether two states have the same structure, dtypes, and shapes but for B."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
    if isinstance(one, tuple) and isinstance(other, tuple):
        return type(one) is type(other) and all(
            same_structure(*pair) for pair in zip(one, other, strict=True)
        )
    return one is None and other is None


def _wrong_part(state: object, num_rows: int) -> str:
    """Describes the first part that is not allowed; empty if all are."""
    if isinstance(state, Tensor):
        fits = state.ndim > 0 and len(state) == num_rows
        return "" if fits else f"a tensor of shape {tuple(state.shape)} for {num_rows} rows"
    if state is None:
        return ""
    fields: tuple[str, ...] | None = getattr(type(state), "_fields", None)
    if not isinstance(state, tuple) or fields is None:
        return f"a {type(state).__name__}"
    for name, part in zip(fields, state, strict=True):
        wrong = _wrong_part(part, num_rows)
        if wrong:
            return f"{wrong} in its field {name!r}"
    return ""


def _like(state: tuple[Any, ...], parts: list[Any]) -> Any:
    """Puts parts into a tuple of the same type."""
    return type(state)(*parts) if hasattr(type(state), "_fields") else tuple(parts)

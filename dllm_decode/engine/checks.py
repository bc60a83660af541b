"""Wraps plug-ins that this package did not write in checks, once, when a decoder is built.

A plug-in of somebody else is wrapped in a twin: an object of a subclass, with the same repr, whose
methods check what the plug-in returns. Plug-ins of this package are not checked in a decode; the
tests wrap all of them. Rules that a decision or logits break are noted for every plug-in by
`State.with_breach`; the rows in which a rule was broken end at the end of the round.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, are_columns
from dllm_decode.core.passes import Branches
from dllm_decode.core.rows import Opening, Row
from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder, Look, Verifier
from samplers.base import Sampler, first_state, next_step, require_decision
from samplers.checks import shown
from samplers.expression import is_ours, parts_of
from samplers.facts import Fact, PlugIn
from samplers.state import map_state

Kind = TypeVar("Kind", bound=PlugIn)


def with_checks(decoder: Decoder) -> Decoder:
    """Returns the decoder in which plug-ins of somebody else are replaced by checking twins."""
    # A twin that was made for another decoder is made anew.
    sampler, schedule = _unchecked(decoder.sampler), _unchecked(decoder.schedule)
    cache, verifier = _unchecked(decoder.cache), _unchecked(decoder.verifier)

    def opening(row: Row, block_length: int, shift: int) -> Opening:
        new_opening = schedule.opening(row, block_length, shift)
        require_opening(decoder, new_opening, row)
        return new_opening

    def recompute(query: CacheQuery) -> Columns:
        columns = cache.recompute(query)
        require_columns(decoder, columns, query.end, f"recompute of {cache!r} must return")
        return columns

    def hidden(query: CacheQuery) -> Columns:
        columns = cache.hidden(query)
        require_hidden(decoder, columns, query.end)
        return columns

    return replace(
        decoder,
        sampler=_twin(
            sampler, Sampler, step=partial(next_step, sampler), init=partial(first_state, sampler),
            max_steps=partial(_max_steps, sampler),
        ),
        schedule=_twin(
            schedule, BlockSchedule, opening=opening, numbers=partial(_numbers, schedule)
        ),
        cache=_twin(
            cache, CachePolicy, recompute=recompute, hidden=hidden, numbers=partial(_numbers, cache)
        ),
        verifier=_twin(
            verifier, Verifier, after=partial(_after, verifier),
            max_steps=partial(_max_steps, verifier),
            look=lambda *args: require_look(verifier.look(*args), owner=verifier),
        ),
    )  # fmt: skip


def _numbers(owner: BlockSchedule | CachePolicy, canvas: Canvas, *args: Any) -> Any:
    numbers = owner.numbers(canvas, *args)
    if numbers is not None:
        require_numbers(numbers, len(canvas), owner=owner)
    return numbers


def _max_steps(owner: Sampler | Verifier, *args: Any) -> int:
    limit: int = owner.max_steps(*args)
    require_max_steps(limit, owner=owner)
    return limit


def _after(
    verifier: Verifier, decoder: Decoder, state: State
) -> tuple[State, Int[Tensor, "B N"] | None]:
    state, numbers = require_after(verifier.after(decoder, state), owner=verifier)
    if numbers is not None:
        require_numbers(numbers, len(state.rows), owner=verifier)
    return state, numbers


def _twin(plugin: Kind, base: type, **methods: Callable[..., Any]) -> Kind:
    """Returns a twin of a foreign plug-in: `methods` replace those that its class overrides."""
    kind = type(plugin)
    if not is_foreign(plugin):
        return plugin
    checked: dict[str, Any] = {
        name: staticmethod(method)
        for name, method in methods.items()
        if getattr(kind, name) is not getattr(base, name)
    }
    attributes = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "unchecked": kind
    }  # fmt: skip
    twin = copy(plugin)
    # The class changes, so that repr, fields and properties stay those of the plug-in.
    object.__setattr__(
        twin, "__class__", cast(Any, type(kind))(kind.__name__, (kind,), attributes | checked)
    )
    return twin


def _unchecked(plugin: Kind) -> Kind:
    """Returns the plug-in that a twin checks, or the plug-in itself."""
    kind = getattr(plugin, "unchecked", None)
    if kind is None:
        return plugin
    # Not the plug-in that was wrapped: `replace` may have changed fields of the twin.
    plain = copy(plugin)
    object.__setattr__(plain, "__class__", kind)
    return plain


def is_foreign(plugin: PlugIn) -> bool:
    """Returns whether somebody else wrote a plug-in, or a plug-in that it holds."""
    return not all(is_ours(type(part)) for part in parts_of(plugin) if isinstance(part, PlugIn))


def require_opening(decoder: Decoder, opening: object, row: Row) -> None:
    """Raises RuntimeError unless `opening` returned a valid `Opening` of unsettled columns."""
    owner, align = decoder.schedule, decoder.align
    if not isinstance(opening, Opening):
        raise RuntimeError(
            f"opening of {owner!r} must return an Opening such as Opening.of_block(start, stop), "
            f"got {shown(opening)} ({type(opening).__name__})."
        )
    start, stop, block, phase = opening[:4]
    bounds = (start, stop, *block, *phase)
    if not all(isinstance(bound, int) for bound in bounds):
        raise RuntimeError(f"opening of {owner!r} must give whole columns, got {opening}.")
    if not row.first <= start < stop <= row.end or stop <= row.unsettled:
        raise RuntimeError(
            f"opening of {owner!r} must open at least one unsettled position, so columns of "
            f"[{row.first}, {row.end}) that end after {row.unsettled}, got {opening}."
        )
    for name, (first, last) in (("block", block), ("phase", phase)):
        if not first <= start < stop <= last:
            raise RuntimeError(
                f"opening of {owner!r} must open columns of its {name} alone, got {opening}."
            )
    if phase[1] - phase[0] > decoder.window_length:
        raise RuntimeError(
            f"phase of the opening of {owner!r} must have at most {decoder.window_length} columns, "
            f"as window_length says, got {opening}."
        )
    if Fact.WHOLE_BLOCKS in owner.gives and opening.stop % align:
        raise RuntimeError(
            f"opening of {owner!r} must end where a block of the model ends, at a multiple of "
            f"{align} columns, got {opening}. Override needs with Fact.SEES_BOTH_WAYS."
        )


def require_max_steps(limit: object, *, owner: object) -> None:
    """Raises RuntimeError unless `max_steps` returned a number of steps."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise RuntimeError(
            f"max_steps of {owner!r} must return a number of steps, got {shown(limit)}."
        )


def require_numbers(numbers: object, num_rows: int, *, owner: object) -> None:
    """Raises RuntimeError unless `numbers` of a plug-in returned integers of the shape (B, N)."""
    if isinstance(numbers, Tensor):
        is_right = numbers.ndim == 2 and len(numbers) == num_rows
        if is_right and not numbers.is_floating_point():
            return
        got = f"{numbers.dtype} {tuple(numbers.shape)} for {num_rows} rows"
    else:
        got = f"{shown(numbers)} ({type(numbers).__name__})"
    raise RuntimeError(f"numbers of {owner!r} must return Int[B, N] or None, got {got}.")


def require_look(found: object, *, owner: Verifier) -> tuple[State, Look]:
    """Returns the result of a verifier's `look`; raises RuntimeError if the result is invalid."""
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Look):
        raise RuntimeError(
            f"look of {owner!r} must return the pair (state, Look(view, window)), got a "
            f"{type(found).__name__}."
        )
    state, look = found
    total = len(state.rows)
    stepping = look.stepping(total)
    if set(stepping) - set(range(total)) or not 0 < len(stepping) == len(set(stepping)):
        raise RuntimeError(
            f"rows of the Look of {owner!r} must be some of the {total} rows, each of them once, "
            f"or None for all of them, got {look.rows}."
        )
    if len(look.view.tokens) != len(stepping):
        raise RuntimeError(
            f"view of the Look of {owner!r} must have its {len(stepping)} rows, got "
            f"{len(look.view.tokens)}."
        )
    if look.decision is not None:
        require_decision(f"look of {owner!r}", look.decision, look.view)

    def check(part: Tensor) -> Tensor:
        if not isinstance(part, Tensor) or not part.ndim or len(part) != total:
            got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else shown(part)
            raise RuntimeError(
                f"The state of {owner!r} must be None, a tensor, or a NamedTuple of such, each "
                f"with an entry for {total} rows, got {got}."
            )
        return part

    map_state(check, state.verifier)
    return state, look


def require_after(found: object, *, owner: Verifier) -> tuple[State, Int[Tensor, "B N"] | None]:
    """Returns the result of a verifier's `after`; raises RuntimeError if the result is no pair."""
    if isinstance(found, tuple) and len(found) == 2:
        return found
    raise RuntimeError(
        f"after of {owner!r} must return the pair (state, numbers), got a {type(found).__name__}."
    )


def require_columns(decoder: Decoder, chosen: object, end: int, culprit: str) -> None:
    """Raises RuntimeError unless a forward can compute these columns of a row."""
    if not are_columns(chosen, end):
        raise RuntimeError(
            f"{culprit} ranges of columns in ascending order, at least one and all within "
            f"[0, {end}), got {shown(chosen)} ({type(chosen).__name__})."
        )
    if not decoder.sight.with_kv_cache and chosen != (range(end),):
        raise RuntimeError(
            f"{decoder.cache!r} must not give EVERY_COLUMN: of columns (0, {end}) its recompute "
            f"returned {chosen!r} alone."
        )


def require_hidden(decoder: Decoder, hidden: Columns, end: int) -> None:
    """Raises RuntimeError unless hidden columns are one range, or none, and not all columns."""
    if hidden == () or (are_columns(hidden, end) and len(hidden) == 1 and len(hidden[0]) < end):
        return
    raise RuntimeError(
        f"hidden of {decoder.cache!r} must return one range of columns, or none, within "
        f"[0, {end}) and not all of it, got {shown(hidden)} ({type(hidden).__name__})."
    )


def require_branches(decoder: Decoder, state: State, branches: Branches) -> None:
    """Raises RuntimeError unless branches are whole canvases, with numbers that are allowed."""
    if branches.causal_from is not None and not branches.in_columns:
        raise RuntimeError("causal_from of Branches must be None unless in_columns is True.")
    if branches.in_columns and not set(branches.rows) <= branches.writers:
        raise RuntimeError(
            "Branches in columns must have branch 0 of each of their rows, whose slots it writes, "
            f"got the rows {branches.rows} and numbers {branches.numbers}."
        )
    size = (len(branches.rows), state.canvas.width)
    if tuple(branches.tokens.shape) != size:
        raise RuntimeError(
            f"tokens of Branches must be whole canvases, {size[0]} of {size[1]} columns, got the "
            f"shape {tuple(branches.tokens.shape)}."
        )
    highest, num_branches = max(branches.numbers), decoder.verifier.num_branches
    if not branches.in_columns and highest >= num_branches:
        raise RuntimeError(
            f"numbers of Branches must be below num_branches of the verifier, {num_branches}, got "
            f"{highest}. Override num_branches, or use in_columns=True."
        )

"""Checks of what plug-ins return, where the engine calls them; `samplers.calls` has a sampler's.

Each error names the plug-in. Rules that a decision or logits break are noted by
`State.with_breach` instead; the rows in which a rule was broken end at the end of the round.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, are_columns
from dllm_decode.core.passes import Branches
from dllm_decode.core.rows import Opening, Row
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from samplers.calls import require_decision
from samplers.checks import shown
from samplers.state import require_state


def require_opening(decoder: Decoder, opening: object, row: Row) -> Opening:
    """Returns an opening; raises RuntimeError unless it is one, of unsettled columns."""
    owner, multiple = decoder.blocks, decoder.block_multiple
    if not isinstance(opening, Opening):
        raise RuntimeError(
            f"opening of {owner!r} must return an Opening such as Opening.of_block(start, stop), "
            f"got {shown(opening)} ({type(opening).__name__})."
        )
    start, stop, block, phase = opening[:4]
    bounds = (start, stop, *block, *phase)
    if not all(isinstance(bound, int) for bound in bounds):
        raise RuntimeError(f"opening of {owner!r} must give whole columns, got {opening}.")
    if not row.blocks_start <= start < stop <= row.end or stop <= row.first_unsettled:
        raise RuntimeError(
            f"opening of {owner!r} must open at least one unsettled position, so columns of "
            f"[{row.blocks_start}, {row.end}) that end after {row.first_unsettled}, got {opening}."
        )
    for name, (first, end) in (("block", block), ("phase", phase)):
        if not first <= start < stop <= end:
            raise RuntimeError(
                f"opening of {owner!r} must open columns of its {name} alone, got {opening}."
            )
    if phase[1] - phase[0] > decoder.window_length:
        raise RuntimeError(
            f"phase of the opening of {owner!r} must have at most {decoder.window_length} columns, "
            f"as window_length says, got {opening}."
        )
    # A block-causal model would see a block that is cut. With a logit shift, the first column of a
    # block is predicted by the block before.
    if block[1] % multiple > decoder.model.logit_shift:
        raise RuntimeError(
            f"block of the opening of {owner!r} must end where a block of the model ends, at a "
            f"multiple of {multiple} columns, got {opening}. Open fewer columns by start and stop, "
            "or override needs with Fact.SEES_BOTH_WAYS."
        )
    return opening


def require_numbers(
    numbers: object, canvas: Canvas, *, owner: object
) -> Bool[Tensor, "B N"] | Int[Tensor, "B N"]:
    """Returns numbers, for `None` no columns of them.

    Raises:
        RuntimeError: If they are not integers, N for each row of a canvas.
    """
    if numbers is None:
        return _no_numbers(len(canvas))
    if isinstance(numbers, Tensor):
        is_right = numbers.ndim == 2 and len(numbers) == len(canvas)
        if is_right and not numbers.is_floating_point():
            return numbers
        got = f"{numbers.dtype} {tuple(numbers.shape)} for {len(canvas)} rows"
    else:
        got = f"{shown(numbers)} ({type(numbers).__name__})"
    raise RuntimeError(f"numbers of {owner!r} must return Int[B, N] or None, got {got}.")


@lru_cache(maxsize=64)
def _no_numbers(num_rows: int) -> Int[Tensor, "B 0"]:
    return torch.empty(num_rows, 0, dtype=torch.long)


def require_look(found: object, *, owner: Verifier) -> tuple[State, Look]:
    """Returns the result of a verifier's `look`; raises RuntimeError if the result is invalid."""
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Look):
        raise RuntimeError(
            f"look of {owner!r} must return the pair (state, Look(view, window)), got a "
            f"{type(found).__name__}."
        )
    state, look = found
    total = len(state.rows)
    stepping = look.stepping(state)
    if len(stepping) + len(look.waiting) != total or not stepping:
        raise RuntimeError(
            f"waiting of the Look of {owner!r} must be some of the {total} rows, each of them "
            f"once, and not all of them, got {look.waiting}."
        )
    if len(look.view.tokens) != len(stepping):
        raise RuntimeError(
            f"view of the Look of {owner!r} must have its {len(stepping)} rows, got "
            f"{len(look.view.tokens)}."
        )
    if look.decision is not None:
        require_decision(f"look of {owner!r}", look.decision, look.view)
    require_state(state.verifier_state, total, owner=owner)
    return state, look


def require_after(
    found: object, *, owner: Verifier
) -> tuple[State, Bool[Tensor, "B N"] | Int[Tensor, "B N"]]:
    """Returns the result of a verifier's `after`; raises RuntimeError if the result is invalid."""
    if isinstance(found, tuple) and len(found) == 2:
        state, numbers = found
        return state, require_numbers(numbers, state.canvas, owner=owner)
    raise RuntimeError(
        f"after of {owner!r} must return the pair (state, numbers), got a {type(found).__name__}."
    )


def require_columns(decoder: Decoder, chosen: object, end: int, *, by_verifier: bool) -> None:
    """Raises RuntimeError unless a forward can compute these columns of a row.

    They come from the verifier, or else from the cache policy.
    """
    if not are_columns(chosen, end):
        duty = f"columns_to_compute of {decoder.cache!r} must return"
        if by_verifier:
            duty = f"columns of Pass by {decoder.verifier!r} must be"
        raise RuntimeError(
            f"{duty} ranges of columns in ascending order, at least one and all "
            f"within [0, {end}), got {shown(chosen)} ({type(chosen).__name__})."
        )
    if not decoder.sight.with_kv_cache and chosen != (range(end),):
        raise RuntimeError(
            f"{decoder.cache!r} must not give EVERY_COLUMN: of columns (0, {end}) its "
            f"columns_to_compute returned {chosen!r} alone."
        )


def require_hidden(decoder: Decoder, hidden: Columns, end: int) -> Columns:
    """Returns hidden columns; raises RuntimeError unless they are none, or one range, not all."""
    if hidden == () or (are_columns(hidden, end) and len(hidden) == 1 and len(hidden[0]) < end):
        return hidden
    raise RuntimeError(
        f"hidden of {decoder.cache!r} must return one range of columns, or none, within "
        f"[0, {end}) and not all of it, got {shown(hidden)} ({type(hidden).__name__})."
    )


def require_branches(decoder: Decoder, state: State, branches: Branches) -> None:
    """Raises RuntimeError unless branches are whole canvases, no more of a row than are allowed."""
    if branches.causal_from and not branches.in_columns:
        raise RuntimeError("causal_from of Branches must be empty unless in_columns is True.")
    if branches.in_columns and not set(branches.rows) <= branches.writers:
        raise RuntimeError(
            "Branches in columns must have branch 0 of each of their rows, whose slots it writes, "
            f"got the rows {branches.rows} and branches {branches.branch_numbers}."
        )
    size = (len(branches.rows), state.canvas.width)
    if tuple(branches.tokens.shape) != size:
        raise RuntimeError(
            f"tokens of Branches must be whole canvases, {size[0]} of {size[1]} columns, got the "
            f"shape {tuple(branches.tokens.shape)}."
        )
    highest, num_branches = max(branches.branch_numbers), decoder.verifier.num_branches
    if not branches.in_columns and highest >= num_branches:
        raise RuntimeError(
            "Branches.branch_numbers must be below num_branches of the verifier, "
            f"{num_branches}, got "
            f"{highest}. Override num_branches, or use in_columns=True."
        )

"""Forwards with further columns: masked copies of a window, and several states of a row."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dllm_decode.ancestors import ROOT, ancestors
from dllm_decode.models.base import ForwardInputs


def with_leave_one_out(inputs: ForwardInputs, mask_id: int) -> ForwardInputs:
    """Appends a masked copy of the wanted columns, which predicts each of them without seeing it.

    A copy has the rotary position of its original. It sees all columns but its original, and the
    copies of all columns of the row. Columns after the row's end may be wanted, because a window
    may end there; the copy of such a column is seen by itself alone. No original sees a copy.
    """
    copied, (rows, length) = inputs.wanted, inputs.tokens.shape
    width = copied.shape[1]
    copies = torch.arange(length, length + width, device=copied.device).expand(rows, -1)
    masks = torch.full_like(copied, mask_id)
    present = torch.ones_like(inputs.tokens, dtype=torch.bool)[:, None]
    present = present if inputs.attend is None else inputs.attend
    attend = present.new_zeros(rows, length + width, length + width)
    attend[:, :, :length] = present
    # Columns after the last one are wanted as that one, so that only its first copy counts.
    is_own = present[:, 0].expand(rows, length).gather(1, copied)
    is_own[:, 1:] &= copied[:, 1:] != copied[:, :-1]
    itself = torch.eye(width, dtype=torch.bool, device=copied.device)
    attend[:, length:, length:] = is_own[:, None] | itself
    attend[:, length:].scatter_(2, copied[..., None], False)
    return replace(
        inputs,
        tokens=torch.cat([inputs.tokens, masks], 1),
        positions=torch.cat([inputs.positions, inputs.positions.gather(1, copied)], 1),
        wanted=torch.cat([copied, copies], 1),
        attend=attend,
    )


def pack(
    inputs: ForwardInputs,
    rows: Int[Tensor, " N"],
    branches: Int[Tensor, " N"],
    *,
    size: tuple[int, int],
    num_keys: int,
    first_free: int,
) -> ForwardInputs:
    """Makes the states of a row, which are rows of `inputs`, columns of one row.

    Branch 0 reads and writes exactly the slots that it would if it were the only state. Every other
    branch sees its own columns instead of the row's slots of these columns, and the row's other
    slots; its keys and values are written after the row's own. No other branch sees them.

    Args:
        inputs: A forward with one state a row; if it has slots, they are per row.
        rows: Row of the result of each state.
        branches: Branch of each state within its row.
        size: Rows of the result, and most states of a row.
        num_keys: Keys of the forward, K; without a cache its columns.
        first_free: First slot after the row's own slots; at least `num_keys`.
    """
    tokens = inputs.tokens
    width, device = tokens.shape[1], tokens.device
    columns = torch.arange(width, device=device)
    free = first_free + width * torch.arange(-1, size[1] - 1, device=device)
    slots = (free[:, None] + columns).repeat(size[0], 1, 1)
    shared = inputs.slots if isinstance(inputs.slots, Tensor) else columns.expand_as(tokens)
    own = torch.where(branches[:, None] == 0, shared, slots[rows, branches])
    # Rows with fewer states than others compute columns that are never read.
    slots[rows, branches] = own
    attend = tokens.new_zeros((*tokens.shape, first_free + (size[1] - 1) * width), dtype=torch.bool)
    attend[..., :num_keys] = True if inputs.attend is None else inputs.attend
    there = shared[:, None].expand(-1, width, -1)
    # A row with fewer columns than another repeats its last one. In branch 0 the copies share one
    # slot; in other branches each has a slot, of which only the first may be seen.
    repeated = torch.zeros_like(shared, dtype=torch.bool)
    repeated[:, 1:] = shared[:, 1:] == shared[:, :-1]
    is_further = (branches > 0)[:, None, None]
    seen = attend.gather(2, there) & ~(repeated[:, None] & is_further)
    attend = attend.scatter(2, there, seen & ~is_further)
    # The states are a tree without depth: each follows the shared slots and sees only itself.
    flat = torch.full((1, size[1]), ROOT, device=device)
    tree = ancestors(flat)[0, branches, 1:]
    attend[..., first_free:] = (tree[:, None, :, None] & seen[:, :, None]).flatten(2)
    return replace(
        inputs,
        tokens=_laid(tokens, rows, branches, size),
        positions=_laid(inputs.positions, rows, branches, size),
        wanted=_laid(inputs.wanted + width * branches[:, None], rows, branches, size),
        attend=_laid(attend, rows, branches, size),
        slots=None if inputs.slots is None else slots.flatten(1, 2),
    )


def unpack(
    packed: Float[Tensor, "B X V"], rows: Int[Tensor, " N"], branches: Int[Tensor, " N"], depth: int
) -> Float[Tensor, "N W V"]:
    """Returns the logits of each state, from the logits of a packed forward."""
    states: Tensor = packed.unflatten(1, (depth, -1))
    if len(states) == 1:
        # Branch by branch already, so that nothing has to be copied.
        return states[0]
    return states[rows, branches]


def _laid(
    parts: Shaped[Tensor, "N X ..."],
    rows: Int[Tensor, " N"],
    branches: Int[Tensor, " N"],
    size: tuple[int, int],
) -> Shaped[Tensor, "B Y ..."]:
    laid = parts.new_zeros(*size, *parts.shape[1:])
    laid[rows, branches] = parts
    return laid.flatten(1, 2)

"""Where things stand: a sampler's window, the columns of a forward, and who sees whom."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.caches import Columns
from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.sizes import round_up
from samplers.base import Sampler

# Logit columns are padded to a multiple of 8, so that few shapes occur.
_STRIDE = 8


def window_of(canvas: Canvas, block: Block, sampler: Sampler) -> Block:
    """Returns the answer positions that a sampler sees while a block is open."""
    first = 0 if sampler.scope == "answer" else block.start
    return Block(first, block.end if sampler.scope == "block" else canvas.region_length)


def read_columns(
    canvas: Canvas, block: Block, sampler: Sampler, reach: Block | None = None
) -> Int[Tensor, "B N"] | None:
    """Returns the window's columns whose logits are read, the masked ones first; `None`: all.

    Args:
        canvas: The rows.
        block: The open block.
        sampler: Says how much it must see.
        reach: The part of the block that holds all open masks; `None`: all of it.
    """
    if sampler.reads_committed or sampler.leave_one_out or sampler.scope != "block":
        return None
    masked = canvas.open_masks[:, block.start : block.end]
    # An accelerator wants few shapes, and cannot be asked without waiting for it.
    if masked.device.type != "cpu":
        return _reached(canvas, block, reach)
    most = round_up(int(masked.sum(-1).max()), _STRIDE)
    if most >= masked.shape[1]:
        return None
    return masked.sort(dim=-1, descending=True, stable=True).indices[:, :most]


def _reached(canvas: Canvas, block: Block, reach: Block | None) -> Int[Tensor, "B N"] | None:
    if reach is None or reach == block:
        return None
    columns = torch.arange(reach.start, reach.end, device=canvas.tokens.device) - block.start
    return columns.repeat(len(canvas), 1)


@dataclass(frozen=True, eq=False)
class ForwardGeometry:
    """The columns of a forward, and all that follows from where they stand.

    Attributes:
        chosen: Absolute columns that are computed.
        window: Columns that a sampler sees.
        end: First column that nothing in the window can see.
        canvas: The rows, at any stage.
        columns: What is computed of every row: as `chosen`, or, where rows have joined and all
            columns are chosen, those that the row may see.
        slots: The same, as a slice where it is one.
        positions: As `ForwardInputs.positions`.
        wanted: As `ForwardInputs.wanted`: what predicts the window.
        attend: As `ForwardInputs.attend`.
        known: Where the window is predicted by a column that is computed; `None`: everywhere.
        hidden: Columns that are not attended to, as in `caches.by_row.Answer`; `None`: none.
    """

    chosen: Columns
    window: slice
    end: int
    canvas: Canvas
    columns: Int[Tensor, "B Q"]
    slots: Columns
    positions: Int[Tensor, "B Q"]
    wanted: Int[Tensor, "B W"]
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None
    known: Bool[Tensor, "B W"] | None
    hidden: slice | Int[Tensor, "B 2"] | None

    @staticmethod
    def of(
        model: MaskPredictor,
        canvas: Canvas,
        chosen: Columns,
        window: slice,
        end: int,
        *,
        with_kv_cache: bool,
        hidden: slice | Int[Tensor, "B 2"] | None = None,
    ) -> "ForwardGeometry":
        """Works it out.

        Args:
            model: Says how columns attend, and how far their logits are shifted.
            canvas: The rows.
            chosen: Columns to compute.
            window: Columns to predict.
            end: First column that nothing in the window can see.
            with_kv_cache: Whether keys are those of the cache, or of the chosen columns alone.
            hidden: Columns that are not attended to; `None`: none.
        """
        shift = model.logit_shift
        every = torch.arange(end, device=canvas.tokens.device).expand(len(canvas), -1)
        first, last, _ = chosen.indices(end) if isinstance(chosen, slice) else (0, 0, 1)
        # Where rows have joined others, no row has all columns: what it never sees is left out.
        trims = (first, last) == (0, canvas.length) and canvas.span < canvas.length
        slots = canvas.own_columns() if trims else chosen
        columns = (every[:, slots] if isinstance(slots, slice) else slots).contiguous()
        predictors = torch.arange(window.start - shift, window.stop - shift, device=columns.device)
        # No column predicts column 0 of a shifted model; its own logits stand in.
        predictors = predictors.clamp(min=0).repeat(len(canvas), 1)
        wanted = torch.searchsorted(columns, predictors).clamp(max=columns.shape[1] - 1)
        covers = first <= max(0, window.start - shift) and window.stop - shift <= last
        return ForwardGeometry(
            chosen=chosen,
            window=window,
            end=end,
            canvas=canvas,
            columns=columns,
            slots=slots,
            positions=(columns - canvas.pads[:, None]).clamp(min=0),
            wanted=wanted,
            attend=_attend(
                canvas,
                columns,
                every if with_kv_cache else columns,
                is_last_block=_in_last_block(model, canvas, chosen, end),
                causal_block_length=model.causal_block_length,
                hidden=hidden,
            ),
            known=None if covers else columns.gather(1, wanted) == predictors,
            hidden=hidden,
        )

    def tokens(self, canvas: Canvas) -> Int[Tensor, "B Q"]:
        """Returns what stands in its columns."""
        if isinstance(self.slots, slice):
            return canvas.tokens[:, self.slots]
        return canvas.tokens.gather(1, self.slots)

    def fits(
        self,
        canvas: Canvas,
        chosen: Columns,
        window: slice,
        end: int,
        hidden: slice | Int[Tensor, "B 2"] | None,
    ) -> bool:
        """Says whether it serves a forward too; columns that differ by row are worked out anew."""
        mine = self.canvas
        return (
            isinstance(chosen, slice)
            and isinstance(self.chosen, slice)
            and (chosen, window, end) == (self.chosen, self.window, self.end)
            and hidden == self.hidden
            and canvas.layout == mine.layout
        )


def _in_last_block(model: MaskPredictor, canvas: Canvas, chosen: Columns, end: int) -> bool:
    """Says whether no query has a block behind it: so it is in a bidirectional model."""
    length = model.causal_block_length
    if not length:
        return True
    first = chosen.indices(end)[0] if isinstance(chosen, slice) else 0
    return not canvas.padded and first // length == (end - 1) // length


def _attend(
    canvas: Canvas,
    columns: Int[Tensor, "B Q"],
    keys: Int[Tensor, "B K"],
    *,
    is_last_block: bool,
    causal_block_length: int,
    hidden: slice | Int[Tensor, "B 2"] | None,
) -> Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None:
    """Returns the mask of a forward; `None`: everything sees everything."""
    if is_last_block and not canvas.padded and hidden is None:
        return None
    seen = attention_mask(
        columns,
        keys,
        firsts=canvas.pads,
        ends=canvas.start + canvas.ends,
        block_length=0 if is_last_block else causal_block_length,
    )
    if hidden is None:
        return seen
    first, end = (hidden.start, hidden.stop) if isinstance(hidden, slice) else hidden.split(1, 1)
    visible: Tensor = seen & ((keys < first) | (keys >= end))[:, None]
    return visible


def attention_mask(
    columns: Int[Tensor, "B Q"],
    keys: Int[Tensor, "B K"],
    *,
    firsts: Int[Tensor, " B"],
    ends: Int[Tensor, " B"],
    block_length: int,
) -> Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"]:
    """Says which columns see which: the one place where this rule stands.

    A row's own columns are seen, padding is not. In a block-causal model a column sees its own
    block and those before it; blocks count from the row's first column.

    Args:
        columns: Columns that look.
        keys: Columns that are looked at.
        firsts: First column of each row's own.
        ends: Column behind the last of each row's own.
        block_length: Tokens per block of a block-causal model; 0: every column sees all.
    """
    present = ((keys >= firsts[:, None]) & (keys < ends[:, None]))[:, None]
    if not block_length:
        return present
    own = ((columns - firsts[:, None]) // block_length)[..., None]
    return (((keys - firsts[:, None]) // block_length)[:, None] <= own) & present

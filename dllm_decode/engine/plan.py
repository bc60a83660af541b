"""The columns of one row in a forward, and how the model sees and predicts."""

from typing import NamedTuple

import torch

from dllm_decode.core.columns import Columns, count
from dllm_decode.core.sizes import round_up

# Numbers of columns that are not one range are rounded up to a multiple of this, because libraries
# keep scratch memory for each shape.
_STRIDE = 16


class Plan(NamedTuple):
    """The columns of one row in a forward.

    Attributes:
        columns: The columns to compute.
        end: First column that no computed column sees.
        needed: First column that predicts the open block.
        hidden: Columns that are neither computed nor seen.
    """

    columns: Columns
    end: int
    needed: int
    hidden: Columns = ()

    @property
    def first(self) -> int:
        """The first column to compute."""
        return self.columns[0].start

    @property
    def stop(self) -> int:
        """The first column after those to compute."""
        return self.columns[-1].stop

    @property
    def width(self) -> int:
        """Columns of the row in a forward; the last one is repeated to fill up."""
        number = count(self.columns)
        return number if len(self.columns) == 1 else min(round_up(number, _STRIDE), self.end)


class Sight(NamedTuple):
    """How a model sees and predicts.

    Attributes:
        shift: Columns from a column to the column that its logits predict, 0 or 1.
        causal_block_length: As `MaskPredictor.causal_block_length`.
        sees_later_blocks: True if a column sees the masks of later blocks.
        with_kv_cache: True if keys come from a cache, False if from the computed columns alone.
        device: Device of the model's inputs.
    """

    shift: int
    causal_block_length: int
    sees_later_blocks: bool
    with_kv_cache: bool
    device: torch.device

"""Rows of the forwards that score canvases: a row for each canvas, or for each rollout.

Models that attend both ways compute a row for each canvas. Block-causal models compute a row for
each rollout: the final canvas, then the blocks of each canvas that differ from it. A canvas that
differs from the final one in block 1, and one that differs in block 2:

                          final canvas          canvas 0   canvas 1
    column                0-3   4-7   8-11      4-7        8-11
    final, block 1         x     x
    canvas 0, block 1      x                     x
    canvas 1, block 2      x     x                          x

Source: Arriola et al. 2025, "Block Diffusion", https://arxiv.org/abs/2503.09573, the vectorised
training. Differs: The row has a copy for each step, not for each block.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.options import DecodeConfig
from dllm_decode.models import MaskedTransformer
from dllm_decode.rollouts.canvases import Canvases
from dllm_decode.rollouts.rollout import Rollout


class ScoredRow(NamedTuple):
    """One row of a forward.

    Attributes:
        tokens: Token of each column.
        positions: Rotary position of each column.
        given: Columns that guidance hides in its second forward.
        attend: Which column sees which; `None`: every column sees every other.
        predictors: The column that predicts each scored token.
        targets: The scored tokens.
        entries: Number of each scored token, counted over all rollouts.
        config: The options of the decode.
    """

    tokens: Int[Tensor, " Q"]
    positions: Int[Tensor, " Q"]
    given: Bool[Tensor, " Q"]
    attend: Bool[Tensor, "Q Q"] | None
    predictors: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    entries: Int[Tensor, " N"]
    config: DecodeConfig


def rows_of(
    model: MaskedTransformer, rollout: Rollout, canvases: Canvases, first: int
) -> list[ScoredRow]:
    """Returns the rows that score a rollout's canvases; `first` is the first token's entry."""
    if not len(canvases.canvas):
        return []
    template = torch.tensor([*rollout.prompt, *rollout.template], dtype=torch.long)
    given = torch.zeros(canvases.tokens.shape[1], dtype=torch.bool)
    given[: len(template)] = template != rollout.mask_id
    predictors = (canvases.positions + len(rollout.prompt) - model.logit_shift).clamp(min=0)
    entries = torch.arange(first, first + len(canvases.canvas))
    full_row = ScoredRow(
        tokens=canvases.tokens[0],
        positions=torch.arange(len(given)),
        given=given,
        attend=None,
        predictors=predictors,
        targets=canvases.targets,
        entries=entries,
        config=rollout.config,
    )
    if model.causal_block_length:
        return [_packed(full_row, rollout, canvases, model.causal_block_length)]
    rows = []
    for n in canvases.canvas.unique().tolist():
        on_canvas = canvases.canvas == n
        rows.append(
            full_row._replace(
                tokens=canvases.tokens[n],
                predictors=predictors[on_canvas],
                targets=canvases.targets[on_canvas],
                entries=entries[on_canvas],
            )
        )
    return rows


def _packed(full_row: ScoredRow, rollout: Rollout, canvases: Canvases, length: int) -> ScoredRow:
    """Returns the row of a rollout: the final canvas, then the blocks in which canvases differ.

    `full_row` is a row of one canvas with all scored tokens; blocks have `length` tokens.
    """
    final, final_positions = rollout.canvases()[-1], full_row.positions
    columns, predictors = canvases.positions + len(rollout.prompt), full_row.predictors.clone()
    tokens, positions, copies = [final], [final_positions], [torch.zeros_like(final_positions)]
    width = len(final)
    for n in canvases.canvas.unique().tolist():
        canvas, on_canvas = canvases.tokens[n], canvases.canvas == n
        stop = (int(columns[on_canvas].max()) // length + 1) * length
        # Scored columns do not see later blocks.
        differs = (canvas[:stop] != final[:stop]).nonzero().flatten().tolist()
        start = min([int(columns[on_canvas].min()), *differs[:1]]) // length * length
        # The predictor of a block's first column may be in the block before, in the final canvas.
        in_copy = on_canvas & (full_row.predictors >= start)
        predictors[in_copy] += width - start
        tokens.append(canvas[start:stop])
        positions.append(final_positions[start:stop])
        copies.append(torch.full((stop - start,), n + 1))
        width += stop - start
    row_positions = torch.cat(positions)
    return full_row._replace(
        tokens=torch.cat(tokens),
        positions=row_positions,
        given=full_row.given[row_positions],
        attend=_who_sees_whom(row_positions // length, torch.cat(copies)),
        predictors=predictors,
    )


def _who_sees_whom(blocks: Int[Tensor, " Q"], copies: Int[Tensor, " Q"]) -> Bool[Tensor, "Q Q"]:
    """Returns which column sees which.

    A column sees its own copy up to its own block, and the blocks of the final canvas, which is
    copy 0, that precede the copy's first block.
    """
    first_blocks = torch.full((int(copies.max()) + 1,), len(blocks))
    first_blocks = first_blocks.scatter_reduce(0, copies, blocks, "amin")
    same_copy = copies[:, None] == copies
    in_final = (copies == 0) & (blocks < first_blocks[copies][:, None])
    return (blocks[:, None] >= blocks) & (same_copy | in_final)

"""Rows of the forwards that score canvases: a row for each canvas, or for each rollout.

Models that attend both ways compute a row for each canvas. Block-causal models compute a row for
each rollout: the final canvas, then of each canvas the columns in which it differs. A canvas that
differs from the final one in block 1, and one that differs in block 2:

                          final canvas          canvas 0   canvas 1
    column                0-3   4-7   8-11      4-7        8-11
    final, block 1         x     x
    canvas 0, block 1      x                     x
    canvas 1, block 2      x     x                          x

Source: Arriola et al. 2025, "Block Diffusion", https://arxiv.org/abs/2503.09573, the vectorised
training. Differs: A copy for each step, not one of each block.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.options import DecodeConfig
from dllm_decode.models import MaskedTransformer
from dllm_decode.rollouts.canvases import Canvases
from dllm_decode.rollouts.record import Rollout


class ScoredRow(NamedTuple):
    """One row of a forward.

    Attributes:
        tokens: Its tokens.
        positions: Their rotary positions.
        given: Columns that guidance hides in its second forward.
        attend: Which column sees which; `None`: all see all.
        predictors: The column that predicts each scored token.
        targets: The scored tokens.
        entries: Number of each scored token among those of all rollouts.
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
    """Returns the rows that score the canvases of a rollout, from scored token `first` on."""
    if not len(canvases.canvas):
        return []
    template = torch.tensor([*rollout.prompt, *rollout.template], dtype=torch.long)
    given = torch.zeros(canvases.tokens.shape[1], dtype=torch.bool)
    given[: len(template)] = template != rollout.mask_id
    predictors = (canvases.positions + len(rollout.prompt) - model.logit_shift).clamp(min=0)
    entries = torch.arange(first, first + len(canvases.canvas))
    whole = ScoredRow(
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
        return [_packed(whole, rollout, canvases, model.causal_block_length)]
    found = []
    for n in canvases.canvas.unique().tolist():
        own = canvases.canvas == n
        found.append(
            whole._replace(
                tokens=canvases.tokens[n],
                predictors=predictors[own],
                targets=canvases.targets[own],
                entries=entries[own],
            )
        )
    return found


def _packed(whole: ScoredRow, rollout: Rollout, canvases: Canvases, length: int) -> ScoredRow:
    """Returns the row of a rollout: the final canvas, and the columns that differ before steps.

    `whole` is the row of one canvas that predicts all scored tokens; blocks have `length` tokens.
    """
    final, own = rollout.canvases()[-1], whole.positions
    columns, predictors = canvases.positions + len(rollout.prompt), whole.predictors.clone()
    tokens, positions, copies = [final], [own], [torch.zeros_like(own)]
    width = len(final)
    for n in canvases.canvas.unique().tolist():
        canvas, is_own = canvases.tokens[n], canvases.canvas == n
        stop = (int(columns[is_own].max()) // length + 1) * length
        # Columns of later blocks are not seen.
        differs = (canvas[:stop] != final[:stop]).nonzero().flatten().tolist()
        start = min([int(columns[is_own].min()), *differs[:1]]) // length * length
        # The column that predicts a block's first one may be in the block before, which is final.
        in_copy = is_own & (whole.predictors >= start)
        predictors[in_copy] += width - start
        tokens.append(canvas[start:stop])
        positions.append(own[start:stop])
        copies.append(torch.full((stop - start,), n + 1))
        width += stop - start
    places = torch.cat(positions)
    return whole._replace(
        tokens=torch.cat(tokens),
        positions=places,
        given=whole.given[places],
        attend=_who_sees_whom(places // length, torch.cat(copies)),
        predictors=predictors,
    )


def _who_sees_whom(blocks: Int[Tensor, " Q"], copies: Int[Tensor, " Q"]) -> Bool[Tensor, "Q Q"]:
    """Returns which column sees which.

    A column sees its own copy up to its block, and the final canvas, which is copy 0, before the
    copy begins.
    """
    begins = torch.full((int(copies.max()) + 1,), len(blocks))
    begins = begins.scatter_reduce(0, copies, blocks, "amin")
    is_same = copies[:, None] == copies
    in_final = (copies == 0) & (blocks < begins[copies][:, None])
    return (blocks[:, None] >= blocks) & (is_same | in_final)

"""A block's first token from the block's first forward (Fast-dLLM and FreeDave on Dream)."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from samplers.base import Decision
from samplers.view import View, by_row
from samplers.wrapper import Wrapper

Entry: TypeAlias = Literal["sampler", "official"]
"""Who commits a block's first token on a model whose logits predict the next column."""


def require_entry(entry: object) -> None:
    """Raises ValueError unless a value is an `Entry`."""
    if entry not in ("sampler", "official"):
        raise ValueError(f'entry must be "sampler" or "official", got {entry!r}.')


@dataclass(frozen=True)
class EntryToken(Wrapper[Any]):
    """Commits the open block's first token, and no other, in the block's first step.

    The confidence of that token does not matter. The base is asked in this step too, so that it
    counts the step; from the second step on the base decides alone. A row whose block starts with a
    given token has no such step.

    Source: Wu et al. 2025, "Fast-dLLM", https://arxiv.org/abs/2505.22618, the authors' code for
    Dream (`generation_utils_block.py`): block forwards leave out the column before the block, which
    predicts the block's first token.
    """

    def max_steps(self, num_masks: int) -> int:
        return self.base.max_steps(num_masks) + 1

    def init(self, view: View) -> Any:
        return self.base.init(view)

    def step(self, view: View, state: Any) -> tuple[Decision, Any]:
        decision, after = self.base.step(view, state)
        # Only the first step finds it masked, because no base re-masks.
        alone = entry_alone(view)
        commit = torch.where(alone.any(-1, keepdim=True), alone, decision.commit)
        return replace(decision, commit=commit), after


def entry_alone(view: View) -> Bool[Tensor, "B W"]:
    """Returns the first position of each row's open block, if it may be committed."""
    columns = torch.arange(view.tokens.shape[1], device=view.tokens.device)
    first = torch.zeros_like(view.tokens[:, :1]) + by_row(view.block_start)
    return view.eligible & (columns == first)

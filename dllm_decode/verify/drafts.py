"""Drafts: where they start, and their tokens."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.engine.row_options import temperature_of
from dllm_decode.engine.state import State
from dllm_decode.models.targets.causal import Past
from samplers.logits import noise
from samplers.logits.statistics import draw, most_likely


class DraftStart(NamedTuple):
    """Where each row's draft starts, and how its tokens are drawn.

    Without a `Drafting`, as in `Guided`, `memory` and `past` are `None`.

    Attributes:
        canvas: The rows.
        first_unsettled: Column of the first unsettled position.
        noise_keys: Noise keys of the rows.
        temperature: One temperature for all rows, or one for each row; 0 is greedy.
        memory: As the drafting returned it after the last round.
        past: Keys and values of the tokens that the target has read.
    """

    canvas: Canvas
    first_unsettled: Int[Tensor, " B"]
    noise_keys: Int[Tensor, " B"]
    temperature: Float[Tensor, " B"] | float
    memory: Int[Tensor, "B ..."] | None = None
    past: Past | None = None

    @staticmethod
    def of(state: State) -> "DraftStart":
        """Returns where the drafts of all rows start."""
        first_unsettled = state.canvas.unsettled.long().argmax(-1)
        temperature = temperature_of(state.rows, first_unsettled.device)
        return DraftStart(state.canvas, first_unsettled, state.noise_keys, temperature)

    @property
    def is_greedy(self) -> bool:
        """True if no row draws its tokens."""
        return isinstance(self.temperature, float) and self.temperature == 0.0

    def position_keys(self, num_positions: int, depth: int = 0) -> Int[Tensor, "B N"]:
        """Returns noise keys of consecutive positions, from seed, request and position alone.

        Args:
            num_positions: Number of positions.
            depth: Positions after the first unsettled one.
        """
        places = torch.arange(depth, depth + num_positions, device=self.first_unsettled.device)
        positions = (self.first_unsettled - self.canvas.prompt_lengths)[:, None] + places
        return noise.position_keys(self.noise_keys, torch.zeros_like(self.noise_keys), positions)

    def proposals(self, logits: Float[Tensor, "B N V"], depth: int = 0) -> Int[Tensor, "B N"]:
        """Returns the likeliest tokens of consecutive positions, or draws above temperature 0.

        Args:
            logits: Logits of the positions.
            depth: Positions after the first unsettled one.
        """
        if self.is_greedy:
            return most_likely(logits)
        drawn = draw(logits, self.temperature, self.position_keys(logits.shape[1], depth))
        if isinstance(self.temperature, float):
            return drawn
        return torch.where(self.temperature[:, None] > 0.0, drawn, most_likely(logits))

    def context(self, num_tokens: int) -> Int[Tensor, "B C"]:
        """Returns the last tokens before each row's first unsettled position."""
        back = torch.arange(num_tokens, 0, -1, device=self.first_unsettled.device)
        return self.canvas.tokens.gather(1, (self.first_unsettled[:, None] - back).clamp(min=0))


class Draft(NamedTuple):
    """One draft a row: a path of tokens, or a tree of several paths.

    Attributes:
        tokens: A path has the tokens of consecutive positions from the first unsettled one on; a
            tree has tokens in any order in which parents come before their children.
        counts: Tokens of each row's draft; the tokens after them are arbitrary.
        logits: Logits of the distribution that each token was drawn from. The distribution may
            depend on the tokens to the left of the token, never on those to its right. `None` if
            the tokens were chosen, not drawn.
        temperature: The distribution is softmax(logits / temperature), which is computed only where
            it is needed. `None`: `logits` are log-probabilities already.
        parents: For each token of a tree the index in `tokens` of the token that it follows; -1: it
            follows the committed text. `None`: a path, each token follows the one before it.
            Tokens with the same parent are different. A tree is not drawn: `logits` is `None`.
        judged_as_block: True if a drawn draft is judged by `accept_block`, not token by token.
        own_forwards: Forwards that the drafting itself ran for each row; `None`: none.
        forward_width: Columns of each row in such a forward.
    """

    tokens: Int[Tensor, "B K"]
    counts: Int[Tensor, " B"]
    logits: Float[Tensor, "B K V"] | None = None
    temperature: float | None = None
    parents: Int[Tensor, "B K"] | None = None
    judged_as_block: bool = False
    own_forwards: Int[Tensor, " B"] | None = None
    forward_width: int = 0

    def shortened(self, num_tokens: int) -> "Draft":
        """Returns the draft without the tokens after the first `num_tokens`; `counts` stay."""
        parents = None if self.parents is None else self.parents[:, :num_tokens]
        return self._replace(tokens=self.tokens[:, :num_tokens], parents=parents)

    def subtree(self, kept: Bool[Tensor, "B K"]) -> "Draft":
        """Returns a tree of some nodes, in the same order; the parent of a kept node is kept."""
        assert self.parents is not None
        order = (~kept).long().argsort(dim=-1, stable=True)
        places = order.argsort(-1)
        tokens, parents = self.tokens.gather(1, order), self.parents.gather(1, order)
        parents = torch.where(parents < 0, -1, places.gather(1, parents.clamp(min=0)))
        return self._replace(tokens=tokens, counts=kept.sum(-1), parents=parents)

    def num_broken(self) -> Int[Tensor, ""]:
        """Counts the tokens of trees whose parent comes later, or that repeat a sibling."""
        if self.parents is None:
            return torch.zeros_like(self.counts).sum()
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        parents, tokens = self.parents, self.tokens
        broken = (parents < -1) | (parents >= places)
        alike = (tokens[:, :, None] == tokens[:, None]) & (parents[:, :, None] == parents[:, None])
        broken |= alike.tril(-1).any(-1)
        return (broken & (places < self.counts[:, None])).sum()

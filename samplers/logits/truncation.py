"""Distributions that proposals are drawn from: tempered, and cut to the likeliest tokens."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits.statistics import divided, widen


@dataclass(frozen=True)
class Truncation:
    """Divides logits by a temperature, then keeps the likeliest tokens.

    The tokens of `top_p` are selected first, then the `top_k` likeliest of these; all others get
    -inf. Probabilities, confidences, margins and entropies of the result are therefore those of
    the distribution that is drawn from.

    Source: Ye et al. 2025, "Dream 7B: Diffusion Large Language Models",
    https://arxiv.org/abs/2508.15487, the generation code of the checkpoint. `top_p`: Holtzman et
    al. 2020, "The Curious Case of Neural Text Degeneration", https://arxiv.org/abs/1904.09751.
    Differs: In float32 or better; the authors' is in the model's dtype. Among equal logits at the
    border of `top_p`, the lowest ids stay. As in the authors' code, and unlike transformers, one
    more token stays where the mass of the likeliest is exactly `top_p`.

    Each attribute is one number, or a tensor of one number a row; then the first axis of the logits
    is the rows, and each row's result is bit by bit that of the row alone.

    Attributes:
        temperature: Divisor of the logits; 0 leaves them as they are, for greedy proposals.
        top_p: A token stays if the tokens before it, likeliest first, have at most this much
            probability together: of two equally likely tokens, both stay at 0.5.
        top_k: At most this many tokens stay, and those as likely as the last of them; 0: all.
    """

    temperature: Float[Tensor, " B"] | float = 0.0
    top_p: Float[Tensor, " B"] | float = 1.0
    top_k: Int[Tensor, " B"] | int = 0

    def __call__(self, logits: Float[Tensor, "*shape V"]) -> Float[Tensor, "*shape V"]:
        """Returns logits whose softmax is the distribution to draw from."""
        truncated, (temperature, top_p) = widen(logits), (self.temperature, self.top_p)
        if isinstance(temperature, Tensor):
            truncated = divided(truncated, torch.where(temperature > 0.0, temperature, 1.0))
        elif temperature > 0.0:
            truncated = divided(truncated, temperature)
        if isinstance(top_p, Tensor):
            # The rounded mass may exceed 1, which cuts nothing.
            limit = torch.where(top_p < 1.0, top_p, torch.inf).to(truncated)
            truncated = _within_mass(truncated, limit.view(-1, *[1] * (truncated.ndim - 1)))
        elif top_p < 1.0:
            truncated = _within_mass(truncated, top_p)
        return self._within_top_k(truncated)

    def take(self, rows: Int[Tensor, " N"]) -> "Truncation":
        """Returns the truncation of some rows."""
        row_values: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **row_values)

    def _within_top_k(self, logits: Float[Tensor, "*shape V"]) -> Float[Tensor, "*shape V"]:
        """Keeps the `top_k` likeliest tokens, and those as likely as the last of them."""
        top_k, vocab_size = self.top_k, logits.shape[-1]
        if isinstance(top_k, Tensor):
            # Reading the largest number would wait for the device, so that all logits are sorted.
            top_k = torch.where(top_k > 0, top_k, vocab_size).clamp(max=vocab_size)
            place = (top_k - 1).view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
            last = logits.sort(dim=-1, descending=True).values.gather(-1, place)
        elif 0 < top_k < vocab_size:
            last = logits.topk(top_k, dim=-1).values[..., -1:]
        else:
            return logits
        return logits.masked_fill(logits < last, -torch.inf)


def _within_mass(
    logits: Float[Tensor, "*shape V"], top_p: Float[Tensor, "..."] | float
) -> Float[Tensor, "*shape V"]:
    """Keeps the likeliest tokens up to and including the one at which the mass exceeds `top_p`."""
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    # The mass before each token: a shifted sum, because a difference would round.
    mass_before = torch.cat([torch.zeros_like(ordered[..., :1]), probabilities.cumsum(-1)], -1)
    is_cut = mass_before[..., :-1] > top_p
    return logits.masked_fill(torch.zeros_like(is_cut).scatter(-1, tokens, is_cut), -torch.inf)

"""Statistics of next-token distributions, and stable selection by score.

Logits are scored a few positions at a time: at V = 126,464 a float32 copy of a whole canvas is
gigabytes, one of a few rows stays in the processor's cache.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.noise import gumbel

# Keeps the divergence from a token that was impossible finite; KLASS' value.
_SMOOTHING = 1e-12

_CHUNK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 30}


class TopK(NamedTuple):
    """The largest logits of each position, descending, and their token ids."""

    logits: Float[Tensor, "B W n"]
    tokens: Int[Tensor, "B W n"]


def most_likely(logits: Float[Tensor, "B W V"]) -> Int[Tensor, "B W"]:
    """Returns the token of the largest logit; the lowest id of several."""
    # `max` where `argmax` would do: on the CPU it is four times faster in half precision.
    return logits.max(-1).indices


def log_normaliser(
    logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Returns log sum exp over the vocabulary, in float32 or better.

    Args:
        logits: Half precision is widened as it is read.
        tokens: Any token of finite logit at each position.
    """
    # By way of log_softmax, which reads half precision and sums in float32 in one pass.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    flat, flat_tokens = logits.flatten(0, 1), tokens.flatten()[:, None]
    found = [
        flat[rows].log_softmax(-1, dtype=dtype).gather(-1, flat_tokens[rows])
        for rows in _chunks(flat, dtype)
    ]
    log_probability = torch.cat(found).view(tokens.shape) if found else tokens.to(dtype)
    return gather(logits, tokens) - log_probability


def entropy(logits: Float[Tensor, "B W V"]) -> Float[Tensor, "B W"]:
    """Returns the entropy of softmax(logits) in nats; excluded tokens (-inf) count as 0."""
    return _by_chunk(_entropy, logits)


def divergence(new: Float[Tensor, "B W V"], old: Float[Tensor, "B W V"]) -> Float[Tensor, "B W"]:
    """Returns KL(softmax(new) || softmax(old)) in nats, both smoothed by 1e-12 in the logarithm."""
    return _by_chunk(_divergence, new, old)


def top_k(logits: Float[Tensor, "B W V"], n: int) -> TopK:
    """Returns the n largest logits of each position in float32 or better, and their ids."""
    # In the logits' own dtype: widening is monotone, so it can follow.
    values, tokens = logits.topk(n, dim=-1)
    return TopK(widen(values), tokens)


def gather(logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Returns each position's logit of the given token, in float32 or better."""
    return widen(logits.gather(-1, tokens[..., None]).squeeze(-1))


def draw(
    logits: Float[Tensor, "B W V"], temperature: float, keys: Int[Tensor, "B W"]
) -> Int[Tensor, "B W"]:
    """Draws a token from softmax(logits / temperature) at each position by Gumbel-max.

    Computed in float64 on the log scale: low precision lowers the effective temperature, and no
    exponential of a logit is ever formed.

    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models",
    https://arxiv.org/abs/2409.02908 (why float64); Nie et al. 2025, "Large Language Diffusion
    Models", https://arxiv.org/abs/2502.09992 (the convention).
    """
    flat, flat_keys = logits.flatten(0, 1), keys.flatten()
    drawn = [
        (flat[rows].double() / temperature + gumbel(flat_keys[rows], flat.shape[-1])).argmax(-1)
        for rows in _chunks(flat, torch.float64)
    ]
    return torch.cat(drawn).view(keys.shape) if drawn else torch.empty_like(keys)


def widen(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Converts half precision to float32 and leaves float32 and float64 alone."""
    return values if values.dtype == torch.float64 else values.float()


def ranks(scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Int[Tensor, "B W"]:
    """Ranks positions by descending score, 0 first; ties go to the left, the rest come last."""
    # The lowest finite number, so that a hopeless eligible position still precedes all others.
    lowest = torch.finfo(scores.dtype).min
    scores = scores.nan_to_num(nan=lowest, neginf=lowest).masked_fill(~among, -torch.inf)
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    columns = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, columns)


def highest(
    scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"], count: Int[Tensor, " B"]
) -> Bool[Tensor, "B W"]:
    """Selects each row's `count` highest scores among the given positions, or all there are."""
    return among & (ranks(scores, among) < count[:, None])


def highest_one(scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Selects each row's highest score among the given positions; nothing where there are none."""
    return highest(scores, among, torch.ones(len(scores), dtype=torch.long, device=scores.device))


def in_order(values: Float[Tensor, "B W"], ranks: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Rearranges values so that the one of rank 0 comes first."""
    return torch.empty_like(values).scatter_(-1, ranks, values)


def leading(passes: Bool[Tensor, "B W"]) -> Int[Tensor, " B"]:
    """Counts each row's passes up to its first failure."""
    return passes.long().cumprod(-1).sum(-1)


def _entropy(logits: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    logs = logits.log_softmax(-1)
    # 0 log 0 is 0: a finite stand-in for log 0 keeps the product from being NaN.
    return -(logs.exp() * logs.clamp_(min=torch.finfo(logs.dtype).min)).sum(-1)


def _divergence(new: Float[Tensor, "n V"], old: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    new, old = new.softmax(-1), old.softmax(-1)
    return (new * ((new + _SMOOTHING).log_() - (old + _SMOOTHING).log_())).sum(-1)


def _by_chunk(
    statistic: Callable[..., Float[Tensor, " n"]], *logits: Float[Tensor, "B W V"]
) -> Float[Tensor, "B W"]:
    flat = [part.flatten(0, 1) for part in logits]
    dtype = torch.float64 if logits[0].dtype == torch.float64 else torch.float32
    values = [
        statistic(*(part[rows].to(dtype) for part in flat)) for rows in _chunks(flat[0], dtype)
    ]
    shape = logits[0].shape[:-1]
    return torch.cat(values).view(shape) if values else logits[0].new_empty(shape, dtype=dtype)


def _chunks(flat: Float[Tensor, "N V"], dtype: torch.dtype) -> Iterator[slice]:
    limit = _CHUNK_BYTES.get(flat.device.type, _CHUNK_BYTES["cuda"])
    length = max(1, limit // (flat.shape[-1] * dtype.itemsize))
    return (slice(start, start + length) for start in range(0, len(flat), length))

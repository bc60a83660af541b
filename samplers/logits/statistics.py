"""Statistics of next-token distributions, and stable selection by score.

All statistics are in one module because authors of samplers import them from there.

Logits are scored a few positions at a time: at V = 126,464 a float32 copy of a whole canvas takes
gigabytes, but a copy of a few positions stays in the processor's cache.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.logits.float64 import in_float64, widest
from samplers.logits.noise import gumbel

# Keeps the divergence finite if a token was impossible; the value of KLASS.
_SMOOTHING = 1e-12

# Bytes of a chunk in the precision of its computation: few enough for a CPU's cache, enough to keep
# a GPU busy.
_CHUNK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 26}

# Token ids of a chunk. Taking the maximum of each chunk first, and indices in the best chunks only,
# is several times faster on the CPU than following all indices.
_ID_CHUNK = 512


class TopK(NamedTuple):
    """The largest logits of each position, descending, and their token ids."""

    logits: Float[Tensor, "*shape n"]
    tokens: Int[Tensor, "*shape n"]


class Spread(NamedTuple):
    """How the probability of each position is spread over its tokens.

    Attributes:
        odds_against: (1 - p) / p of the most likely token.
        entropy: Entropy in nats.
    """

    odds_against: Float[Tensor, "*shape"]
    entropy: Float[Tensor, "*shape"]


def most_likely(logits: Float[Tensor, "B W V"]) -> Int[Tensor, "B W"]:
    """Returns the token of the largest logit; among ties the lowest id."""
    return top_k(logits, 1).tokens.squeeze(-1)


def odds_against(
    logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Returns the odds against the most likely token, in float32 or better.

    They are (1 - p) / p = sum over all other tokens j of exp(l_j - l_max), so that p is
    1 / (1 + odds). Unlike exp(l_max - log_normaliser), which has the resolution of the logits
    (2e-6 at 20), this tells probabilities near 1 apart. The term 1 of the token itself is left
    out of the sum, because the small terms of a long vocabulary would round away next to it.

    Args:
        logits: Half precision is widened as it is read.
        tokens: The most likely token of each position.
    """
    return _by_chunk(_odds_against, logits, tokens)


def log_normaliser(
    logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Returns log sum exp over the vocabulary, in float32 or better.

    Do not compute a probability as exp(logit - log_normaliser); see `probability`.

    Args:
        logits: Half precision is widened as it is read.
        tokens: The most likely token of each position.
    """
    return gather(logits, tokens) + odds_against(logits, tokens).log1p()


def probability(logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Returns the probability of the given token at each position, in float32 or better."""
    best = most_likely(logits)
    gap = gather(logits, tokens) - gather(logits, best)
    return gap.exp() / (1.0 + odds_against(logits, best))


def spread(logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]) -> Spread:
    """Returns `odds_against` and the entropy in nats, in one pass; -inf counts as 0.

    Args:
        logits: Half precision is widened as it is read.
        tokens: The most likely token of each position.
    """
    results = _by_chunk(_odds_and_entropy, logits, tokens)
    return Spread(results[..., 0], results[..., 1])


def top_and_spread(logits: Float[Tensor, "*shape V"]) -> tuple[TopK, Spread]:
    """Returns the two largest logits, `odds_against` and the entropy, for a compiler to fuse.

    Without a compiler it holds several copies of the logits. Among ties the lowest id comes first.
    """
    wide, ids = widen(logits), torch.arange(logits.shape[-1], device=logits.device)
    peak = wide.amax(-1, keepdim=True)
    first = torch.where(wide == peak, ids, len(ids)).amin(-1, keepdim=True)
    rest = torch.where(ids == first, -torch.inf, wide)
    second_peak = rest.amax(-1, keepdim=True)
    second = torch.where((rest == second_peak) & (ids != first), ids, len(ids)).amin(-1, True)
    # exp(-200) is 0 in float32, as is 0 times -200: excluded tokens count as nothing.
    gap = (rest - peak).clamp(min=-200.0)
    share = torch.where(ids == first, 0.0, gap.exp())
    odds, surplus = share.sum(-1), (share * gap).sum(-1)
    # No logit equals a NaN peak; the id must be a token all the same.
    tokens = torch.cat([first, second], -1).clamp(max=len(ids) - 1)
    entropy = odds.log1p() - surplus / (1.0 + odds)
    return TopK(torch.cat([peak, second_peak], -1), tokens), Spread(odds, entropy)


def divergence(new: Float[Tensor, "B W V"], old: Float[Tensor, "B W V"]) -> Float[Tensor, "B W"]:
    """Returns KL(softmax(new) || softmax(old)) in nats, both smoothed by 1e-12 in the logarithm."""
    return _by_chunk(_divergence, new, old)


def top_k(logits: Float[Tensor, "B W V"], n: int) -> TopK:
    """Returns the n largest logits of each position in float32 or better, and their ids.

    Among tied logits the lowest id comes first if n is at most 2, else any.
    """
    # Found in the logits' own dtype and widened afterwards, because widening keeps the order.
    vocab_size = logits.shape[-1]
    if vocab_size < 2 * n * _ID_CHUNK:
        values, tokens = _largest(logits, n)
        return TopK(widen(values), tokens)
    tail = vocab_size - vocab_size % _ID_CHUNK
    chunks = logits[..., :tail].unflatten(-1, (-1, _ID_CHUNK))
    # In ascending order, so that the first of tied contenders has the lowest id.
    best = _largest(chunks.amax(-1), n).tokens.sort(-1).values
    contenders = chunks.gather(-2, best[..., None].expand(*best.shape, _ID_CHUNK)).flatten(-2)
    values, places = _largest(torch.cat([contenders, logits[..., tail:]], -1), n)
    starts = torch.cat([best * _ID_CHUNK, torch.full_like(best[..., :1], tail)], -1)
    return TopK(widen(values), starts.gather(-1, places // _ID_CHUNK) + places % _ID_CHUNK)


def gather(logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Returns each position's logit of the given token, in float32 or better."""
    return widen(logits.gather(-1, tokens[..., None]).squeeze(-1))


def num_larger(logits: Float[Tensor, "B W V"], values: Float[Tensor, "B W"]) -> Int[Tensor, "B W"]:
    """Counts the tokens whose logit exceeds a value."""

    def count(logits: Float[Tensor, "n V"], values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return (logits > values[:, None]).sum(-1)

    return _by_chunk(count, logits, values)


def log_probability(
    logits: Float[Tensor, "B W V"],
    tokens: Int[Tensor, "B W"],
    temperature: Float[Tensor, " B"] | float,
) -> Float[Tensor, "B W"]:
    """Returns the logarithm of each token's softmax(logits / temperature), computed in float64.

    For a device without float64 the CPU computes the result, which is then float32.
    """

    def log_some(
        logits: Float[Tensor, "n V"],
        tokens: Int[Tensor, " n"],
        temperature: Float[Tensor, " n"] | float = temperature,
    ) -> Float[Tensor, " n"]:
        wide = in_float64(logits)
        # Subtracted first: quotients as large as 1e14 would round their differences to 0.
        scaled = divided(wide - wide.amax(-1, keepdim=True), temperature)
        token_logits = scaled.gather(-1, tokens.to(scaled.device)[:, None]).squeeze(-1)
        return (token_logits - scaled.logsumexp(-1)).to(tokens.device, widest(tokens.device))

    return _by_chunk(
        log_some, logits, tokens, *_of_positions(temperature, tokens), dtype=torch.float64
    )


def logprob_temperature(temperature: Float[Tensor, " B"] | float) -> Float[Tensor, " B"] | float:
    """Returns the temperature at which a token's probability is stated: 1 for greedy decoding."""
    if isinstance(temperature, Tensor):
        return torch.where(temperature > 0.0, temperature, 1.0)
    return temperature or 1.0


def certain_where(
    logits: Float[Tensor, "B W V"], where: Bool[Tensor, "B W"], tokens: Int[Tensor, "B W"]
) -> Float[Tensor, "B W V"]:
    """Makes a token the only possible one at some positions; changes the logits in place."""
    index = tokens[..., None]
    token_logits = logits.gather(-1, index).masked_fill_(where[..., None], 0.0)
    return logits.masked_fill_(where[..., None], -torch.inf).scatter_(-1, index, token_logits)


def divided(
    values: Float[Tensor, "B ..."], by: Float[Tensor, " B"] | Int[Tensor, " B"] | float | int
) -> Float[Tensor, "B ..."]:
    """Divides by one number, or by one a row, with the same bits as if the row were alone."""
    if not isinstance(by, Tensor):
        return values / by
    by = by.to(values).view(-1, *[1] * (values.ndim - 1))
    # On CUDA, torch divides by a Python number by multiplying with its reciprocal.
    return values * by.reciprocal() if values.is_cuda else values / by


def draw(
    logits: Float[Tensor, "B W V"],
    temperature: Float[Tensor, " B"] | float,
    keys: Int[Tensor, "B W"],
) -> Int[Tensor, "B W"]:
    """Draws a token from softmax(logits / temperature) at each position by Gumbel-max.

    Computed in float64 on the log scale: low precision lowers the effective temperature, and no
    exponential of a logit is ever formed. For a device without float64 the CPU draws, and
    draws the same tokens. With a temperature for each row, rows at 0 get arbitrary tokens.

    Source: Zheng et al. 2024, "Masked Diffusion Models are Secretly Time-Agnostic Masked Models",
    https://arxiv.org/abs/2409.02908 (why float64); Nie et al. 2025, "Large Language Diffusion
    Models", https://arxiv.org/abs/2502.09992 (the convention).
    """

    def draw_some(
        logits: Float[Tensor, "n V"],
        keys: Int[Tensor, " n"],
        temperature: Float[Tensor, " n"] | float = temperature,
    ) -> Int[Tensor, " n"]:
        scaled = divided(in_float64(logits), temperature)
        noise = gumbel(keys.to(scaled.device), logits.shape[-1])
        return (scaled + noise).argmax(-1).to(keys.device)

    return _by_chunk(
        draw_some, logits, keys, *_of_positions(temperature, keys), dtype=torch.float64
    )


def _of_positions(
    temperature: Float[Tensor, " B"] | float, like: Int[Tensor, "B W"]
) -> tuple[Float[Tensor, "B W"], ...]:
    """Returns the temperature of each position, if each row has its own."""
    return (temperature[:, None].expand_as(like),) if isinstance(temperature, Tensor) else ()


def widen(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Converts half precision to float32 and leaves float32 and float64 alone."""
    return values if values.dtype == torch.float64 else values.float()


def ranks(scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Int[Tensor, "B W"]:
    """Ranks positions by descending score, from 0, ties from the left; others come last."""
    order = _scores_among(scores, among).sort(dim=-1, descending=True, stable=True).indices
    columns = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, columns)


def highest(
    scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"], count: Int[Tensor, " B"]
) -> Bool[Tensor, "B W"]:
    """Selects each row's `count` highest scores among the given positions, or all there are."""
    return among & (ranks(scores, among) < count[:, None])


def highest_one(scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Selects each row's highest score among the given positions; nothing if there are none.

    Equals `highest` with a count of 1, without sorting.
    """
    # `max` has the first index of ties.
    best = _scores_among(scores, among).max(-1, keepdim=True).indices
    return among & torch.zeros_like(among).scatter_(-1, best, True)


def _scores_among(scores: Float[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Returns scores by which positions outside `among` come last."""
    # The lowest finite number, so that a hopeless eligible position still precedes all others.
    lowest = torch.finfo(scores.dtype).min
    return torch.where(among, scores.nan_to_num(nan=lowest, neginf=lowest), -torch.inf)


def sort_by_rank(values: Float[Tensor, "B W"], ranks: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Sorts values by their ranks, the value of rank 0 first."""
    return torch.empty_like(values).scatter_(-1, ranks, values)


def num_leading(passes: Bool[Tensor, "B W"]) -> Int[Tensor, " B"]:
    """Counts each row's True values before the first False."""
    return passes.long().cumprod(-1).sum(-1)


def _largest(values: Float[Tensor, "B W V"], n: int) -> TopK:
    if n > 2:
        return TopK(*values.topk(n, dim=-1))
    # `max` has the first index of ties, where `topk` has any.
    first = values.max(-1, keepdim=True)
    if n == 1:
        return TopK(*first)
    second = values.scatter(-1, first.indices, -torch.inf).max(-1, keepdim=True)
    # If all other values are -inf, `max` may return the first index again.
    fallback = (first.indices + 1) % values.shape[-1]
    index = torch.where(second.indices == first.indices, fallback, second.indices)
    return TopK(torch.cat([first.values, second.values], -1), torch.cat([first.indices, index], -1))


def _odds_against(logits: Float[Tensor, "n V"], tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    shares = _shares(logits)
    best = shares.gather(-1, tokens[:, None]).squeeze(-1)
    # The rounding of the softmax's normaliser cancels in the quotient.
    return shares.scatter_(-1, tokens[:, None], 0.0).sum(-1) / best


def _odds_and_entropy(
    logits: Float[Tensor, "n V"], tokens: Int[Tensor, " n"]
) -> Float[Tensor, "n 2"]:
    shares = _shares(logits)
    best = shares.gather(-1, tokens[:, None])
    # In place: one more array of this size can cost more in page faults than in arithmetic.
    gaps = logits.to(shares.dtype, copy=True).sub_(logits.gather(-1, tokens[:, None]))
    odds = shares.scatter_(-1, tokens[:, None], 0.0).sum(-1, keepdim=True) / best
    # Excluded tokens give 0 times -inf, which counts as 0. If a logit is NaN, so are the odds.
    surplus = shares.mul_(gaps).nansum(-1, keepdim=True) / best
    return torch.cat([odds, odds.log1p() - surplus / (1.0 + odds)], -1)


def _shares(logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    # Reads half precision and sums in float32 in one pass.
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _divergence(new: Float[Tensor, "n V"], old: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    new, old = _shares(new), _shares(old)
    return (new * ((new + _SMOOTHING).log_() - (old + _SMOOTHING).log_())).sum(-1)


def _by_chunk(
    statistic: Callable[..., Tensor],
    logits: Float[Tensor, "B W V"],
    *others: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Applies a statistic of (n, V) logits to a few positions at a time.

    Args:
        statistic: Called with some positions of the logits and of `others`, as one axis.
        logits: May be a slice of a wider window: at most one chunk is copied at a time.
        others: Tensors of the same two leading dimensions.
        dtype: Narrowest dtype that the statistic computes in.
    """
    B, W, V = logits.shape
    limit = _CHUNK_BYTES.get(logits.device.type, _CHUNK_BYTES["cuda"])
    length = max(1, limit // (V * torch.promote_types(logits.dtype, dtype).itemsize))
    num_rows = max(1, length // max(1, W))
    results = []
    # An empty batch makes one empty chunk, whose result has the right shape and type.
    for row in range(0, max(1, B), num_rows):
        parts = [part[row : row + num_rows].flatten(0, 1) for part in (logits, *others)]
        for start in range(0, max(1, len(parts[0])), length):
            results.append(statistic(*(part[start : start + length] for part in parts)))
    return torch.cat(results).view(B, W, *results[0].shape[1:])

"""Answers that are in a set of texts: which token a row proposes at each unsettled column.

A path is a token for every unsettled column of an answer, such that the answer's text is in the
row's set. Because the whole path is possible, a sampler may commit any of its tokens and leave the
others: the path itself shows that the rest can be completed.

    column        0      1      2      3      4      5
    token         {      A      A      "      A      .        { " settled   A unsettled, with logits
    weight        -    log p  log p    -    log p    0        . unsettled, without logits

    filters       <--- best sum of weights, or total probability, from each state to the end
    trace         ---> from the first column's state, the best class of tokens, or one drawn

Source: Suresh et al. 2025, "DINGO: Constrained Inference for Diffusion LLMs",
https://arxiv.org/abs/2505.23061: the most probable string of a regular language, by dynamic
programming over one block. Differs: the path reaches to the end of the answer, over columns without
logits too; tokens are read by class; the filter runs backwards, so that strings can also be drawn
from the exact conditional distribution.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.automaton import Automata
from samplers.logits import noise
from samplers.logits.float64 import in_float64, widest
from samplers.logits.statistics import divided

# A token that the model excludes is taken only if the set of texts leaves no other. Even at
# this distance below the largest logit, float64 still tells the rest of a path apart.
_EXCLUDED = -1e6


class Span(NamedTuple):
    """The columns of each row's answer over which a path runs.

    Columns after the row's answer count as settled and hold an EOS.

    Attributes:
        tokens: The tokens; arbitrary where they are not settled.
        settled: Columns whose token is decided.
        states: The state of the row's automaton before the first column.
        num_left: Columns of the answer after the span, which have no logits or settled tokens.
    """

    tokens: Int[Tensor, "B T"]
    settled: Bool[Tensor, "B T"]
    states: Int[Tensor, " B"]
    num_left: Int[Tensor, " B"]


class Path(NamedTuple):
    """The tokens of a path at the columns that have logits.

    Attributes:
        tokens: The path's token; the settled one at settled columns.
        found: Rows that have a path; the tokens of the other rows are arbitrary.
    """

    tokens: Int[Tensor, "B N"]
    found: Bool[Tensor, " B"]


class _Weights(NamedTuple):
    """Weights of tokens, as logarithms, at the columns that have logits.

    Attributes:
        total: The weight of each class in the sum over all paths, or in their maximum.
        choice: The weight in the choice of a column's class: `total`, or with Gumbel noise.
        tokens: Returns the values of one column, of which the largest in the chosen class decides
            the token. One column at a time, because a copy of all logits is gigabytes.
    """

    total: Float[Tensor, "B N C"]
    choice: Float[Tensor, "B N C"]
    tokens: Callable[[int], Float[Tensor, "B V"]]


Combine: TypeAlias = Callable[[Tensor, Automata], Tensor]
"""Combines the weights of edges (B, E) into those of their first states (B, S1), S1 = S + 1."""


def best_path(
    automata: Automata,
    span: Span,
    logits: Float[Tensor, "B N V"],
    places: Int[Tensor, "B N"],
) -> Path:
    """Returns the most probable path of each row, with the largest sum of log probabilities.

    A column without logits weighs nothing. Every column after an EOS holds an EOS, whose
    probability counts. Among tied tokens of a class the lowest id is taken.

    Args:
        automata: The sets of texts.
        span: The columns of the path.
        logits: Logits of some columns.
        places: Index in the span of each column of logits, each at most once; T: the column is in
            no path, and its token is arbitrary.
    """
    total = _with_excluded(_largest_of_class(automata, logits))
    weights = _Weights(total, total, lambda number: logits[:, number])
    return _search(automata, span, places, weights, _largest)


def draw_path(
    automata: Automata,
    span: Span,
    logits: Float[Tensor, "B N V"],
    places: Int[Tensor, "B N"],
    *,
    temperature: Float[Tensor, " B"] | float,
    keys: Int[Tensor, "B N"],
) -> Path:
    """Draws tokens from the columns' distributions, on condition that together they are a path.

    The draw is exact: a backward filter sums over all completions, then each column's class is
    drawn in turn by Gumbel-max, and with the class its token, by the same noise that draws tokens
    without a set of texts. Columns without logits after all others only have to leave a completion.
    Other columns without logits take the class that leaves the most probability.

    Args:
        automata: The sets of texts.
        span: The columns of the path.
        logits: Logits of some columns.
        places: As in `best_path`.
        temperature: Temperature of the draws, above 0.
        keys: Noise keys of the columns that have logits.
    """

    def perturbed(number: int) -> Float[Tensor, "B V"]:
        scaled = divided(in_float64(logits[:, number]), temperature)
        gumbels = noise.gumbel(keys[:, number].to(scaled.device), scaled.shape[-1])
        return (scaled + gumbels).to(logits.device, widest(logits.device))

    # One column at a time, because a float64 copy of all logits is gigabytes.
    total, choice = [], []
    for number in range(logits.shape[1]):
        scaled = divided(in_float64(logits[:, number]), temperature)
        total.append(_log_sum_of_class(automata, scaled))
        choice.append(_largest_of_class(automata, perturbed(number)[:, None]))
    total_weights, choice_weights = (
        _with_excluded(torch.cat(part, 1), temperature) for part in (total, choice)
    )
    weights = _Weights(total_weights, choice_weights, perturbed)
    return _search(automata, span, places, weights, _log_sum)


def _search(
    automata: Automata,
    span: Span,
    places: Int[Tensor, "B N"],
    weights: _Weights,
    combined: Combine,
) -> Path:
    """Returns the path whose classes of tokens are chosen from the first column on.

    A settled column keeps its own token.

    Args:
        automata: The sets of texts.
        span: The columns of the path.
        places: Index in the span of each column of logits.
        weights: The weights of classes there.
        combined: Combines the weights of a state's edges into one.
    """
    B, T = span.tokens.shape
    is_scored = torch.zeros(B, T + 1, dtype=torch.bool, device=places.device)
    is_scored = is_scored.scatter_(1, places, True)[:, :T] & ~span.settled
    token_classes = automata.classes.gather(1, span.tokens.clamp(min=0))
    classes = torch.arange(automata.num_classes, device=places.device)
    is_other = span.settled[..., None] & (classes != token_classes[..., None])
    index = places[..., None].expand_as(weights.total)
    total, choice = (
        part.new_zeros(B, T + 1, part.shape[-1])
        .scatter_(1, index, part)[:, :T]
        .masked_fill(~is_scored[..., None], 0.0)
        .masked_fill_(is_other, -torch.inf)
        for part in (weights.total, weights.choice)
    )
    ahead = _weights_ahead(automata, span, total, is_scored, combined)
    labels = _trace(automata, span.states, choice, ahead)
    at = places.clamp(max=T - 1)
    labels, tokens = labels.gather(1, at), span.tokens.gather(1, at)
    for number in range(places.shape[1]):
        chosen = _token_of(automata, weights.tokens(number), labels[:, number])
        is_settled = span.settled.gather(1, at[:, number : number + 1]).squeeze(1)
        tokens[:, number] = torch.where(is_settled, tokens[:, number], chosen)
    has_path = ahead[:, 0].gather(1, span.states[:, None]).squeeze(1) > -torch.inf
    return Path(tokens, has_path)


def _weights_ahead(
    automata: Automata,
    span: Span,
    weights: Float[Tensor, "B T C"],
    is_scored: Bool[Tensor, "B T"],
    combined: Combine,
) -> Float[Tensor, "B T+1 S1"]:
    """Returns the weight of all columns that follow, before each column and from each state."""
    dead = weights.new_full((len(weights), 1), -torch.inf)
    fits = automata.distances <= span.num_left[:, None]
    ahead = torch.cat([torch.where(fits, 0.0, dead), dead], 1)
    filters = [ahead]
    for column in reversed(range(weights.shape[1])):
        edges = weights[:, column].gather(1, automata.labels) + ahead.gather(1, automata.targets)
        # In a settled column only one class has a finite weight, so that both are the same.
        best, total = _largest(edges, automata), combined(edges, automata)
        ahead = torch.where(is_scored[:, column, None], total, best)
        filters.append(ahead)
    return torch.stack(filters[::-1], 1)


def _trace(
    automata: Automata,
    states: Int[Tensor, " B"],
    choice: Float[Tensor, "B T C"],
    ahead: Float[Tensor, "B T+1 S1"],
) -> Int[Tensor, "B T"]:
    """Returns the class of the best edge at each column, from the first column's state on."""
    labels = []
    for column in range(choice.shape[1]):
        edges = choice[:, column].gather(1, automata.labels)
        edges = edges + ahead[:, column + 1].gather(1, automata.targets)
        edges = edges.masked_fill_(automata.sources != states[:, None], -torch.inf)
        best = edges.max(1, keepdim=True).indices
        labels.append(automata.labels.gather(1, best))
        states = automata.targets.gather(1, best).squeeze(1)
    return torch.cat(labels, 1)


def _largest(edges: Float[Tensor, "B E"], automata: Automata) -> Float[Tensor, "B S1"]:
    """Returns the largest weight of each state's edges."""
    none = edges.new_full((len(edges), automata.num_states + 1), -torch.inf)
    return none.scatter_reduce_(1, automata.sources, edges, "amax")


def _log_sum(edges: Float[Tensor, "B E"], automata: Automata) -> Float[Tensor, "B S1"]:
    """Returns the logarithm of the sum of the exponentials of each state's edges."""
    largest = _largest(edges, automata)
    return _log_sum_at(edges, automata.sources, largest)


def _log_sum_at(
    values: Float[Tensor, "B E"], index: Int[Tensor, "B E"], largest: Float[Tensor, "B n"]
) -> Float[Tensor, "B n"]:
    """Returns the log of the sum of exponentials of each index, given its largest value."""
    origin = torch.where(largest > -torch.inf, largest, 0.0)
    shares = (values - origin.gather(1, index)).exp()
    return torch.zeros_like(largest).scatter_add_(1, index, shares).log() + origin


def _largest_of_class(automata: Automata, values: Float[Tensor, "B N V"]) -> Float[Tensor, "B N C"]:
    """Returns the largest value of each class of tokens, in float64 where the device has it."""
    B, N, V = values.shape
    none = values.new_full((B, N, automata.num_classes), -torch.inf)
    largest = none.scatter_reduce_(2, automata.classes[:, None].expand(B, N, V), values, "amax")
    return largest.to(widest(values.device))


def _log_sum_of_class(automata: Automata, values: Float[Tensor, "B V"]) -> Float[Tensor, "B 1 C"]:
    """Returns the logarithm of the sum of the exponentials of each class of tokens."""
    classes = automata.classes.to(values.device)
    none = values.new_full((len(values), automata.num_classes), -torch.inf)
    largest = none.scatter_reduce_(1, classes, values, "amax")
    sums = _log_sum_at(values, classes, largest)
    device = automata.classes.device
    return sums[:, None].to(device, widest(device))


def _with_excluded(
    weights: Float[Tensor, "B N C"], temperature: Float[Tensor, " B"] | float = 1.0
) -> Float[Tensor, "B N C"]:
    """Returns weights without -inf, so that an excluded token is taken if no other is possible.

    Args:
        weights: The weights of classes, at the rows' temperature.
        temperature: Below 1 the weights differ by so much more, and an excluded token must too.
    """
    largest = weights.amax(-1, keepdim=True)
    below = divided(torch.full_like(largest, _EXCLUDED), temperature)
    below = below.clamp(max=_EXCLUDED).to(largest)
    return weights.maximum(torch.where(largest > -torch.inf, largest, 0.0) + below)


def _token_of(
    automata: Automata, values: Float[Tensor, "B V"], labels: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Returns the token of the largest value in a class; the lowest id of ties."""
    none = values.new_full((), -torch.inf)
    largest = torch.where(automata.classes == labels[:, None], values, none).max(-1)
    example = automata.examples.gather(1, labels[:, None]).squeeze(1)
    return torch.where(largest.values > -torch.inf, largest.indices, example)

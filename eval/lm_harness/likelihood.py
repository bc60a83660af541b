"""Log-likelihood of a given answer to a prompt under a masked-diffusion model."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode import ForwardInputs, MaskPredictor
from dllm_decode.core.model import RoutesByBlock, UniformState
from dllm_decode.engine.layout import block_causal_mask
from dllm_decode.settings.files import digest
from eval.metrics.statistics import mean
from samplers.logits.statistics import gather, log_normaliser, most_likely


class Pattern(NamedTuple):
    """Masked positions of an answer, which of them are scored, and a factor of their score."""

    masked: Sequence[int]
    scored: Sequence[int]
    weight: float


class LikelihoodEstimate(NamedTuple):
    """A log-likelihood in nats.

    `is_greedy` says whether decoding from left to right, one token at a time, gives this answer;
    None if this is not known.
    """

    log_likelihood: float
    is_greedy: bool | None


class Estimator(ABC):
    """Turns an answer of several tokens into mask patterns, and their scores into an estimate."""

    @abstractmethod
    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        """Returns the patterns for an answer of some length."""

    @abstractmethod
    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> LikelihoodEstimate:
        """Returns the estimate.

        Args:
            values: Each pattern's weighted sum of log-probabilities.
            hits: True for each pattern whose scored tokens are all most likely.
        """


@dataclass(frozen=True)
class LeftToRight(Estimator):
    """The chain rule from left to right, everything to the right masked; exact, L forwards.

    It is the log-probability of one decoding order, and of all orders if the conditionals come from
    one joint distribution.
    """

    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        return [Pattern(range(i, length), (i,), 1.0) for i in range(length)]

    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> LikelihoodEstimate:
        return LikelihoodEstimate(sum(values), all(hits))


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """The evidence bound of masked diffusion, estimated from random mask patterns.

    E over l uniform on 1..L, and over sets M of l positions, of (L / l) times the sum over M of
    log p(token | tokens outside M). That is the mean over all decoding orders of the chain rule's
    log-probability, and so at most the logarithm of the mean probability. Numbers of masks are
    equally spaced from a random offset, with wrap-around, which lowers the variance.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    equation 6.

    Differs: [MASK] and vocabulary padding have probability 0. The offset is a real number.

    Attributes:
        num_samples: Patterns an answer, or an answer's block if the model is block-causal.
    """

    num_samples: int = 128

    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        offset = rng.random()
        patterns = []
        for index in range(self.num_samples):
            share = (offset + index / self.num_samples) % 1.0
            # The greatest share below 1, times the length, may be rounded up to the length.
            count = min(int(share * length), length - 1) + 1
            masked = sorted(rng.sample(range(length), count))
            patterns.append(Pattern(masked, masked, length / count))
        return patterns

    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> LikelihoodEstimate:
        return LikelihoodEstimate(mean(values), None)


Pair: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of the answer whose probability is asked for."""


@dataclass(frozen=True)
class Likelihood:
    """Scores answers, many mask patterns in a forward.

    The canvas is the prompt and the answer. A block-causal model is scored block by block, the
    earlier blocks without masks, and the logarithms are added. An answer of one token in a block is
    exact and costs one forward with every estimator.

    Attributes:
        model: Any model of masked diffusion.
        estimator: Chooses the patterns.
        seed: Seed of the patterns, which depend on seed, prompt and answer alone.
        batch_size: Rows of a forward.
    """

    model: MaskPredictor
    estimator: Estimator
    seed: int = 0
    batch_size: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.model, UniformState):
            raise ValueError(
                f"A likelihood needs a model of masked diffusion, got {self.model.name}. Use a "
                "model such as LLaDA."
            )
        if isinstance(self.model, RoutesByBlock) and self.model.routing_block_length > 1:
            raise ValueError(
                "A likelihood needs a model in which each token chooses its own experts, got "
                f"{self.model.name}, which computes whole blocks. Use a model such as LLaDA 2.1."
            )

    @torch.inference_mode()
    def score(self, pairs: Sequence[Pair]) -> list[LikelihoodEstimate]:
        """Returns the answers' log-likelihoods, in order; an empty answer has 0.

        Raises ValueError if a prompt is empty, or a prompt or an answer has [MASK].
        """
        for prompt, answer in pairs:
            _check(prompt, answer, self.model.mask_id)
        segments = [(i, part) for i, pair in enumerate(pairs) for part in self._segments(*pair)]
        rows = ((n, row) for n, (_, part) in enumerate(segments) for row in self._rows(part))
        by_segment: list[list[tuple[float, bool]]] = [[] for _ in segments]
        while batch := list(islice(rows, self.batch_size)):
            batch_readings = self._log_probabilities([row for _, row in batch])
            for (n, _), reading in zip(batch, batch_readings, strict=True):
                by_segment[n].append(reading)
        by_pair: list[list[LikelihoodEstimate]] = [[] for _ in pairs]
        for (i, part), readings in zip(segments, by_segment, strict=True):
            values, hits = zip(*readings, strict=True)
            by_pair[i].append(self._estimator(part).combine(values, hits))
        return [_total(parts) for parts in by_pair]

    def _segments(self, prompt: Sequence[int], answer: Sequence[int]) -> list["_Segment"]:
        """Cuts an answer where a block-causal model's blocks end."""
        tokens = [*prompt, *answer]
        block_length = self.model.causal_block_length or len(tokens)
        ends = range(0, len(tokens) + block_length, block_length)
        edges = sorted({min(max(end, len(prompt)), len(tokens)) for end in ends})
        return [_Segment(tokens[:end], start) for start, end in pairwise(edges)]

    def _estimator(self, segment: "_Segment") -> Estimator:
        return self.estimator if segment.length > 1 else LeftToRight()

    def _rows(self, segment: "_Segment") -> list["_Row"]:
        key = digest([self.seed, segment.start, segment.tokens])
        patterns = self._estimator(segment).patterns(segment.length, random.Random(key))
        return [_row(segment, pattern, self.model.mask_id) for pattern in patterns]

    def _log_probabilities(self, rows: Sequence["_Row"]) -> list[tuple[float, bool]]:
        """Returns weighted log-probabilities, and whether all scored tokens are most likely."""
        model = self.model
        on_device = partial(torch.tensor, device=model.device)
        tokens = _stack([row.tokens for row in rows], model.eos_ids[0]).to(model.device)
        columns = _stack([row.columns for row in rows], rows[0].columns[0]).to(model.device)
        targets = _stack([row.targets for row in rows], rows[0].targets[0]).to(model.device)
        positions = torch.arange(tokens.shape[1], device=model.device).expand_as(tokens)
        attend = _attend(
            positions, on_device([len(row.tokens) for row in rows]), model.causal_block_length
        )
        wanted = columns - model.logit_shift
        inputs = ForwardInputs(tokens=tokens, positions=positions, wanted=wanted, attend=attend)
        logits = model.predict(inputs)
        banned = on_device(sorted({model.mask_id, *model.banned_ids}))
        logits = logits.index_fill_(-1, banned, -torch.inf)
        best = most_likely(logits)
        logs = gather(logits, targets) - log_normaliser(logits, best)
        counts = on_device([len(row.columns) for row in rows])
        unwanted = torch.arange(columns.shape[1], device=model.device) >= counts[:, None]
        sums = logs.double().masked_fill(unwanted, 0.0).sum(-1).tolist()
        hits = ((best == targets) | unwanted).all(-1).tolist()
        values = [row.weight * value for row, value in zip(rows, sums, strict=True)]
        return list(zip(values, hits, strict=True))


class _Segment(NamedTuple):
    """The tokens up to the end of a block; patterns mask tokens from `start` on."""

    tokens: list[int]
    start: int

    @property
    def length(self) -> int:
        return len(self.tokens) - self.start


class _Row(NamedTuple):
    """One row of a forward: a canvas with masks, and which columns are scored."""

    tokens: list[int]
    columns: list[int]
    targets: list[int]
    weight: float


def _row(segment: _Segment, pattern: Pattern, mask_id: int) -> _Row:
    tokens = list(segment.tokens)
    for position in pattern.masked:
        tokens[segment.start + position] = mask_id
    columns = [segment.start + position for position in pattern.scored]
    return _Row(tokens, columns, [segment.tokens[column] for column in columns], pattern.weight)


def _stack(rows: Sequence[Sequence[int]], filler: int) -> Int[Tensor, "B N"]:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def _attend(
    positions: Int[Tensor, "B Q"], lengths: Int[Tensor, " B"], block_length: int
) -> Bool[Tensor, "B Q Q"] | Bool[Tensor, "B 1 Q"] | None:
    """Hides the padding of short rows and, from a block-causal model, later blocks."""
    if not block_length and bool((lengths == positions.shape[1]).all()):
        return None
    inside = (positions < lengths[:, None])[:, None]
    if not block_length:
        return inside
    return block_causal_mask(positions, positions.shape[1], block_length) & inside


def _total(parts: Sequence[LikelihoodEstimate]) -> LikelihoodEstimate:
    """Adds up the segments of an answer."""
    greedy = [part.is_greedy for part in parts]
    is_greedy = None if None in greedy else all(greedy)
    return LikelihoodEstimate(sum(part.log_likelihood for part in parts), is_greedy)


def _check(prompt: Sequence[int], answer: Sequence[int], mask_id: int) -> None:
    if not len(prompt):
        raise ValueError(
            "A prompt must have at least one token, got none; start it with the tokenizer's "
            "beginning-of-text token."
        )
    if mask_id in prompt or mask_id in answer:
        raise ValueError(
            f"Prompts and answers to be scored must have no [MASK], got its id {mask_id}; "
            "take its text out of the task."
        )

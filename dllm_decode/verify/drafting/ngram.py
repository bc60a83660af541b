"""Cheap left-to-right language models: they tell likely orders of tokens from unlikely ones."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log2
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.checks import CheckedFields, count_from, require_number, shown
from samplers.logits.float64 import widest

_INT_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Proxy(CheckedFields, ABC):
    """Estimates how likely a token follows a few other tokens, without a forward."""

    @property
    def order(self) -> int:
        """Number of tokens that an estimate uses: the next token and the tokens before it."""
        return 1

    @abstractmethod
    def log_probability(
        self, context: Int[Tensor, "N C"], tokens: Int[Tensor, "N M"]
    ) -> Float[Tensor, "N M"]:
        """Returns the log-probability of each token after the `order - 1` tokens of its row."""


@dataclass(frozen=True)
class Uniform(Proxy):
    """Scores all tokens alike: the drafter alone decides. The constant log 1/V is left out."""

    def log_probability(
        self, context: Int[Tensor, "N C"], tokens: Int[Tensor, "N M"]
    ) -> Float[Tensor, "N M"]:
        return torch.zeros_like(tokens, dtype=torch.float)


@dataclass(frozen=True)
class NGram(Proxy):
    """Counts of short token sequences, smoothed by the counts of shorter sequences.

    P(w | h) = (c(hw) + k P(w | h')) / (c(h) + k), where h' is h without its first token, down to
    the uniform distribution: add-k smoothing with the shorter context as the prior.

    Source: MacKay and Peto 1995, "A Hierarchical Dirichlet Language Model",
    https://doi.org/10.1017/S1351324900000218, equation for the predictive distribution.

    Attributes:
        vocab_size: V.
        length: Tokens of the longest sequences counted, at least 1.
        strength: k, the weight of the prior in tokens, above 0.
        tables: Counts for each length from 1; made by `fit`.
    """

    vocab_size: Annotated[int, count_from(1, "tokens")]
    length: Annotated[int, count_from(1, "tokens")] = 3
    strength: float = 1.0
    tables: tuple["Counts", ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not require_number("strength", self.strength) > 0.0:
            raise ValueError(f"strength must be above 0 tokens, got {self.strength}.")
        if self.length * log2(self.vocab_size) >= 63:
            raise ValueError(
                f"Sequences of {self.length} out of {self.vocab_size} tokens do not fit 64 bits. "
                "Choose a smaller length."
            )

    @property
    def order(self) -> int:
        return self.length

    def fit(self, sequences: Sequence[Sequence[int] | Int[Tensor, " _"]]) -> "NGram":
        """Returns a model with the counts of these sequences of token ids, and no others.

        Raises:
            ValueError: If a sequence holds anything but ids of the vocabulary.
        """
        rows = [id_tensor(sequence, self.vocab_size) for sequence in sequences]
        tables = []
        for length in range(1, self.length + 1):
            spans = [row.unfold(0, length, 1) for row in rows if len(row) >= length]
            codes = [self._code(span) for span in spans] or [torch.empty(0, dtype=torch.long)]
            tables.append(Counts.of(torch.cat(codes), self.vocab_size))
        return NGram(self.vocab_size, self.length, self.strength, tuple(tables))

    def log_probability(
        self, context: Int[Tensor, "N C"], tokens: Int[Tensor, "N M"]
    ) -> Float[Tensor, "N M"]:
        probability = torch.full_like(tokens, 1.0 / self.vocab_size, dtype=widest(tokens.device))
        for length, table in enumerate(self.tables, 1):
            before = self._code(context[:, context.shape[1] - length + 1 :])
            table = _on_device(table, tokens.device)
            codes = before[:, None] * self.vocab_size + tokens
            counts = _values_of(table.codes, table.counts, codes)
            totals = _values_of(table.contexts, table.totals, before[:, None])
            prior = self.strength * probability
            probability = (counts + prior) / (totals + self.strength)
        return probability.log()

    def _code(self, spans: Int[Tensor, "N n"]) -> Int[Tensor, " N"]:
        """Writes each span as one number in base V."""
        code = torch.zeros_like(spans[:, 0]) if spans.shape[1] else spans.new_zeros(len(spans))
        for column in spans.unbind(1):
            code = code * self.vocab_size + column
        return code


def id_tensor(
    sequence: Sequence[int] | Int[Tensor, " _"], vocab_size: int | None = None
) -> Int[Tensor, " N"]:
    """Returns a sequence of token ids as a tensor; raises ValueError if it is none."""
    try:
        row = torch.as_tensor(sequence)
        is_whole = not row.numel() or row.dtype in _INT_DTYPES
        is_outside = (row < 0) if vocab_size is None else (row < 0) | (row >= vocab_size)
        if row.ndim == 1 and is_whole and not is_outside.any():
            return row.long()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    bound = "0 or greater" if vocab_size is None else f"from 0 to {vocab_size - 1}"
    raise ValueError(f"A sequence must hold token ids {bound}, got {shown(sequence)}.")


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of the sequences of one length, sorted by code, and of their contexts.

    Attributes:
        codes: Each sequence as one number in base V.
        counts: How often each sequence occurred.
        contexts: Each sequence without its last token.
        totals: How often each context was followed by any token.
    """

    codes: Int[Tensor, " n"]
    counts: Int[Tensor, " n"]
    contexts: Int[Tensor, " m"]
    totals: Int[Tensor, " m"]

    @staticmethod
    def of(codes: Int[Tensor, " N"], vocab_size: int) -> "Counts":
        """Counts codes; a code's context is the code without its last token."""
        unique, counts = codes.unique(return_counts=True)
        contexts, index = (unique // vocab_size).unique(return_inverse=True)
        totals = torch.zeros_like(contexts).index_add_(0, index, counts)
        return Counts(unique, counts, contexts, totals)


@lru_cache(maxsize=32)
def _on_device(table: Counts, device: torch.device) -> Counts:
    # Cached, because a search looks up every position of every draft, and a table may be large.
    parts = (table.codes, table.counts, table.contexts, table.totals)
    return Counts(*(part.to(device) for part in parts))


def _values_of(
    keys: Int[Tensor, " n"], values: Int[Tensor, " n"], sought: Int[Tensor, "N M"]
) -> Int[Tensor, "N M"]:
    """Returns the value of each sought key; 0: it is not among the sorted `keys`."""
    if not len(keys):
        return torch.zeros_like(sought)
    places = torch.searchsorted(keys, sought).clamp(max=len(keys) - 1)
    return torch.where(keys[places] == sought, values[places], 0)

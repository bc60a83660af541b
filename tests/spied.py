"""Golden checkpoints in float64 under a wrapper that notes what every forward wrote where."""

from dataclasses import dataclass, field, replace
from functools import cache

import torch
from families_under_test import FAMILIES, LAW_OPTIONS, MODELS, load_tiny
from torch import Tensor

from dllm_decode.models import MaskedTransformer
from dllm_decode.models.base import ForwardInputs, KVCache

__all__ = ["FAMILIES", "LAW_OPTIONS", "MODELS", "Spied", "load_tiny", "tiny"]


@cache
def tiny(family: str) -> MaskedTransformer:
    return load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family])


@dataclass
class Spied:
    """A mask predictor that keeps its calls, and which token each slot was computed from last.

    The notes are a further layer of the cache, so that they move with the keys of their row.
    """

    model: MaskedTransformer
    calls: list[ForwardInputs] = field(default_factory=list)
    memories: list[KVCache] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.model.name
        self.vocab_size = self.model.vocab_size
        self.mask_id = self.model.mask_id
        self.eos_ids = self.model.eos_ids
        self.banned_ids = self.model.banned_ids
        self.logit_shift = self.model.logit_shift
        self.causal_block_length = self.model.causal_block_length
        self.max_length = self.model.max_length
        self.device = self.model.device

    @property
    def held(self) -> Tensor:
        """The token that each slot of the last cache was computed from; -1: none yet."""
        tokens, _ = notes_of(self.memories[-1])
        return tokens.long() - 1

    @property
    def positions(self) -> Tensor:
        """The rotary position that each slot was computed at."""
        _, positions = notes_of(self.memories[-1])
        return positions.long()

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.calls.append(inputs)
        if inputs.kv_cache is not None:
            rows, slots = self.rows_of(inputs)[:, None], self.slots_of(inputs)
            tokens, positions = notes_of(inputs.kv_cache)
            tokens[rows, slots] = (inputs.tokens + 1).to(tokens)
            positions[rows, slots] = inputs.positions.to(positions)
        return self.model.predict(inputs)

    def rows_of(self, inputs: ForwardInputs) -> Tensor:
        assert inputs.kv_cache is not None
        rows = torch.arange(inputs.kv_cache.keys.shape[1])
        return rows if inputs.rows is None else rows[inputs.rows]

    def slots_of(self, inputs: ForwardInputs) -> Tensor:
        if isinstance(inputs.slots, slice):
            assert inputs.kv_cache is not None
            return torch.arange(inputs.kv_cache.num_slots)[inputs.slots].expand_as(inputs.tokens)
        assert inputs.slots is not None
        return inputs.slots

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        kv_cache = self.model.new_kv_cache(num_rows, num_slots)
        assert kv_cache.further is None
        notes = kv_cache.keys.new_zeros(2, 1, num_rows, 1, num_slots, 1)
        self.memories.append(replace(kv_cache, further=KVCache(*notes)))
        return self.memories[-1]

    def keys_of(self, tokens: Tensor) -> Tensor:
        """Layer 0's keys of a whole canvas: they depend on a column's token and position only."""
        kv_cache = self.model.new_kv_cache(*tokens.shape)
        columns = torch.arange(tokens.shape[1]).expand_as(tokens)
        inputs = ForwardInputs(
            tokens=tokens,
            positions=self.positions,
            wanted=columns,
            kv_cache=kv_cache,
            slots=columns,
        )
        self.model.predict(inputs)
        return kv_cache.keys[0]


def notes_of(kv_cache: KVCache) -> tuple[Tensor, Tensor]:
    """Returns what a spied cache notes of each slot: its token, counted from 1, and position."""
    notes = kv_cache.further
    assert notes is not None
    return notes.keys[0, :, 0, :, 0], notes.values[0, :, 0, :, 0]


class Peaked(Spied):
    """Multiplies all logits, so that answers vary and a small fault shows."""

    def __init__(self, model: MaskedTransformer, factor: float) -> None:
        super().__init__(model)
        self.factor = factor

    def predict(self, inputs: ForwardInputs) -> Tensor:
        return self.model.predict(inputs) * self.factor

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        return self.model.new_kv_cache(num_rows, num_slots)

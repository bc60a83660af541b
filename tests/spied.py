"""Golden checkpoints in float64 under a wrapper that notes what every forward wrote where."""

from dataclasses import dataclass, field
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
    """A mask predictor that keeps its calls, and which token each slot was computed from last."""

    model: MaskedTransformer
    calls: list[ForwardInputs] = field(default_factory=list)
    memories: list[KVCache] = field(default_factory=list)
    held: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    positions: Tensor = field(default_factory=lambda: torch.empty(0, 0))

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

    def predict(self, inputs: ForwardInputs) -> Tensor:
        self.calls.append(inputs)
        if inputs.kv_cache is not None:
            rows = self.rows_of(inputs)[:, None]
            slots = self.slots_of(inputs)
            # Branches of a tree go behind the slots of the canvas.
            own = slots < self.held.shape[1]
            rows = rows.expand_as(slots)
            self.held[rows[own], slots[own]] = inputs.tokens[own]
            self.positions[rows[own], slots[own]] = inputs.positions[own]
        return self.model.predict(inputs)

    def rows_of(self, inputs: ForwardInputs) -> Tensor:
        rows = torch.arange(len(self.held))
        return rows if inputs.rows is None else rows[inputs.rows]

    def slots_of(self, inputs: ForwardInputs) -> Tensor:
        if isinstance(inputs.slots, slice):
            return torch.arange(self.held.shape[1])[inputs.slots].expand_as(inputs.tokens)
        assert inputs.slots is not None
        return inputs.slots

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        self.held = torch.full((num_rows, num_slots), -1)
        self.positions = torch.zeros_like(self.held)
        self.memories.append(self.model.new_kv_cache(num_rows, num_slots))
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

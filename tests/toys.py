"""Toy models whose logits are a pure function of the canvas, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_decode.models.base import ForwardInputs, KVCache
from samplers.logits.noise import mix, uniform


@dataclass
class HashModel:
    """Logits keyed by everything a row sees: peaked, varied, never tied, alike in any batch.

    Changing one visible token changes all logits, so a wrong column, a leaking pad or a stale
    answer shows at once. It has no keys and values, hence no cache.
    """

    vocab_size: int = 24
    mask_id: int = 23
    eos_ids: tuple[int, ...] = (22,)
    banned_ids: tuple[int, ...] = ()
    logit_shift: int = 0
    causal_block_length: int = 0
    max_length: int | None = None
    peak: float = 6.0
    name: str = "hash model"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def predict(self, inputs: ForwardInputs) -> Tensor:
        tokens, positions = inputs.tokens, inputs.positions
        seen = mix(mix(positions + 1) ^ tokens)[:, None].expand(-1, tokens.shape[1], -1)
        if inputs.attend is not None:
            seen = seen.masked_fill(~inputs.attend.expand_as(seen), 0)
        keys = mix(seen.sum(-1) ^ mix(positions))
        keys = keys.gather(1, inputs.wanted)
        ids = torch.arange(self.vocab_size)
        return self.peak * uniform(mix(keys[..., None] ^ mix(ids + 1000)))

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        raise ValueError("The hash model has no keys and values.")

    def logits_of(self, canvas: Tensor) -> Tensor:
        """Scores a whole canvas without the engine; row p predicts column p whatever the shift."""
        columns = torch.arange(canvas.shape[1])[None].expand(len(canvas), -1)
        logits = self.predict(ForwardInputs(tokens=canvas, positions=columns, wanted=columns))
        if self.logit_shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        return logits

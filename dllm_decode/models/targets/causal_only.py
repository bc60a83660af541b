"""A causal model in place of a mask predictor, for drafts that need no mask predictor."""

from typing import Any, NoReturn

import torch

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models.targets.causal import CausalTarget


class CausalOnly:
    """A `MaskPredictor` that predicts nothing, and gives the engine the ids of a causal model.

    `load_model(..., family="causal")` returns one. It decodes with `ARVerify` and a drafting
    without forwards alone, such as `ARVerify(as_causal_target(model), drafting=Pool())`.
    Its `mask_id` is the id after those of the causal model.

    Attributes:
        target: The causal model, which writes the answers.
    """

    logit_shift = 0
    causal_block_length = 0
    banned_ids: tuple[int, ...] = ()
    max_length: int | None = None

    def __init__(self, target: CausalTarget) -> None:
        self.target = target
        self.name, self.eos_ids, self.files = target.name, target.eos_ids, target.files
        self.mask_id = target.num_shared_ids
        self.vocab_size = self.mask_id + 1

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the causal model."""
        network: Any = self.target.network
        dtype: torch.dtype = network.model.dtype
        return dtype

    def predict(self, inputs: ForwardInputs) -> NoReturn:
        """Raises ValueError, because a causal model predicts no masked tokens."""
        raise ValueError(
            f"{self.name} must be asked nothing, since it is a causal model, got a forward over "
            "[MASK]. Use verifier=ARVerify(as_causal_target(model), drafting=Pool()), "
            "or load a mask predictor."
        )

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Raises ValueError, because the target keeps its keys and values itself."""
        raise ValueError(f"cache must be NoCache() with {self.name}, which is a causal model.")

"""The mask predictor that a loaded checkpoint becomes: a transformer and what its config says."""

from collections.abc import Callable
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.models.base import ForwardInputs, KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.runner import GraphRunner
from dllm_decode.models.network.transformer import Transformer


class MaskedTransformer(nn.Module):
    """A `MaskPredictor` made of a `Transformer` and the facts its checkpoint gives.

    Attributes:
        transformer: The network; train through its `forward` and `head`.
        name: See `MaskPredictor`, as the next five.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer.
        banned_ids: Ids that must never be emitted.
        logit_shift: 1 where the logits at a column predict the next.
        causal_block_length: Tokens per block of a block-causal model, else 0.
        graphs: Whether forwards on one CUDA device are captured as graphs and replayed, see
            `GraphRunner`; the memory of the last decode is then kept for the next, see
            `KVBufferPool`. Set it
            to False to run each anew.
    """

    def __init__(
        self,
        transformer: Transformer,
        *,
        name: str,
        mask_id: int,
        eos_ids: tuple[int, ...],
        banned_ids: tuple[int, ...] = (),
        logit_shift: int = 0,
        causal_block_length: int = 0,
    ) -> None:
        super().__init__()
        vocab_size = transformer.config.vocab_size
        if not 0 <= mask_id < vocab_size:
            raise ValueError(f"mask_id is in [0, {vocab_size}), got {mask_id}.")
        if not eos_ids or any(not 0 <= token < vocab_size for token in eos_ids):
            raise ValueError(f"eos_ids are one or more ids in [0, {vocab_size}), got {eos_ids}.")
        self.transformer = transformer
        self.name = name
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.banned_ids = banned_ids
        self.logit_shift = logit_shift
        self.causal_block_length = causal_block_length
        self.graphs = True
        self._graphs = GraphRunner(self._forward)
        self._kv_buffers = KVBufferPool()

    @property
    def device(self) -> torch.device:
        """Where tensors are expected, and logits returned."""
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, the logits and the memory."""
        return self.transformer.embedding.weight.dtype

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Runs one forward without gradients; only the wanted columns go through the head."""
        return self._graphs(inputs) if self._has_graphs else self._forward(inputs)

    @property
    def _has_graphs(self) -> bool:
        return self.graphs and self.device.type == "cuda" and self.transformer.route is None

    def _forward(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        with torch.inference_mode():
            hidden = self.transformer(
                inputs.tokens,
                inputs.positions,
                attend=inputs.attend,
                kv_cache=inputs.kv_cache,
                slots=inputs.slots,
                rows=inputs.rows,
                wanted=inputs.wanted,
            )
        # Not in inference mode: the caller may change the logits in place, wherever it runs.
        with torch.no_grad():
            return self.transformer.head(hidden).to(self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MaskedTransformer":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        # Recordings read the weights where they were.
        self._graphs = GraphRunner(self._forward)
        self._kv_buffers = KVBufferPool()
        return self

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Allocates a zeroed store in the model's dtype, each layer's part on its device."""
        shape, route = self.transformer.config, self.transformer.route
        devices = (self.device,) * shape.num_layers if route is None else route.layers
        size = (num_rows, shape.num_kv_heads, num_slots, shape.head_dim)
        if self._has_graphs:
            return self._kv_buffers.kv_cache(
                (shape.num_layers, *size), dtype=self.dtype, device=self.device
            )
        kv_cache: KVCache | None = None
        for device, layers in reversed([(key, len(list(run))) for key, run in groupby(devices)]):
            keys, values = (
                torch.zeros((layers, *size), dtype=self.dtype, device=device) for _ in range(2)
            )
            kv_cache = KVCache(keys, values, kv_cache)
        assert kv_cache is not None
        return kv_cache

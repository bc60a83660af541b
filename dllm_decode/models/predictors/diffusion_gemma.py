"""DiffusionGemma, a uniform-state model: the network of transformers as a mask predictor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from dllm_decode.core.model import ForwardInputs, KVCache, zeroed_cache
from dllm_decode.models.network.context import rows_of

if TYPE_CHECKING:
    from transformers import DiffusionGemmaForBlockDiffusion


class DiffusionGemma:
    """A `DiffusionGemmaForBlockDiffusion` of transformers as a mask predictor, for texts.

    A forward encodes the context columns that are to be computed, each of which sees the columns
    before it, then decodes the block, which sees the context and itself. Only the encoder's keys
    and values are stored, because those of the block are never read again.

    Source: DiffusionGemma 2026, transformers 5.23, `models/diffusion_gemma`.

    Attributes:
        name: See `MaskPredictor`, also for attributes that are not listed here.
        block_length: See `UniformState`; `canvas_length` in config.json.
        unread_ids: See `UniformState`; the tokens of images.
        fingerprint: See `Fingerprinted`.
        files: The files that the model was read from.
        network: The model of transformers.
    """

    logit_shift = 0
    causal_block_length = 0
    banned_ids: tuple[int, ...] = ()

    def __init__(
        self, network: "DiffusionGemmaForBlockDiffusion", *, name: str, eos_ids: tuple[int, ...]
    ) -> None:
        """Wraps a model on its devices; it is set to evaluation mode."""
        config: Any = network.config
        text = config.get_text_config()
        images = (config.image_token_id, config.boi_token_id, config.eoi_token_id)
        self.name = self.fingerprint = name
        self.vocab_size = self.mask_id = text.vocab_size
        self.eos_ids = eos_ids
        self.unread_ids = tuple(token for token in images if token is not None)
        self.max_length: int | None = text.max_position_embeddings
        self.block_length = config.canvas_length
        self.files: tuple[Path, ...] = ()
        self.network = network.eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"DiffusionGemma({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where tensors are expected, and logits returned."""
        device: torch.device = self.network.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters and of the KV cache; logits are in float32."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Encodes the context columns that are computed, then decodes the block.

        `attend` is not read, because each row's context ends where its wanted columns begin.

        Raises:
            ValueError: If rows differ both in stored and in computed context columns.
        """
        context, belief = _context_of(inputs), inputs.belief
        cache = _ContextCache(self.network.config, inputs, context.old)
        if belief is not None:
            belief = belief.to(self.dtype)
            # The softmax of a row without a belief would be NaN.
            if context.has_belief is not None:
                belief = belief.masked_fill(~context.has_belief[:, None, None], 0.0)
        mask, after = context.mask, torch.ones_like(inputs.wanted, dtype=torch.bool)
        with torch.no_grad():
            output = self.network(
                input_ids=context.tokens,
                position_ids=context.positions,
                attention_mask=mask,
                past_key_values=cache,
                decoder_input_ids=inputs.tokens.gather(1, inputs.wanted),
                decoder_position_ids=inputs.positions.gather(1, inputs.wanted),
                decoder_attention_mask=None if mask is None else torch.cat([mask, after], 1),
                self_conditioning_logits=belief,
                self_conditioning_mask=context.has_belief,
            )
        if inputs.kv_cache is not None and context.positions is not None:
            cache.write(context.positions)
        logits: Tensor = output.logits
        return logits.to(self.device)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Allocates a zeroed cache with a part for each layer, because their heads differ."""
        parts = []
        for layer in self.network.model.encoder.language_model.layers:
            attention, weight = layer.self_attn, layer.self_attn.k_proj.weight
            num_heads = weight.shape[0] // attention.head_dim
            size = (1, num_rows, num_heads, num_slots, attention.head_dim)
            device = self.device if weight.is_meta else weight.device
            parts.append(zeroed_cache(size, self.dtype, device))
        return KVCache.of(parts)


class _Context(NamedTuple):
    """The columns before the block: those in the cache, then those to encode; padding comes first.

    `old` has the slots of columns in the cache. `None`: there are no such columns.
    """

    old: Int[Tensor, "B O"] | None
    tokens: Int[Tensor, "B N"] | None
    positions: Int[Tensor, "B N"] | None
    # True at columns that are no pads; `None`: everywhere.
    mask: Bool[Tensor, "B C"] | None
    # Rows that have a belief; `None`: all, or none.
    has_belief: Bool[Tensor, " B"] | None


def _context_of(inputs: ForwardInputs) -> _Context:
    """Lays out the columns before the block; waits for the device once.

    Without waiting, every forward would have a mask, whose values transformers reads several times.
    """
    num_old, num_new = inputs.positions[:, 0], inputs.wanted[:, 0]
    has_belief = torch.ones_like(num_old, dtype=torch.bool)
    if inputs.belief is not None:
        has_belief = inputs.belief.amax((1, 2)) > -torch.inf
    olds, news, belief_flags = torch.stack([num_old, num_new, has_belief.long()]).tolist()
    if len(set(olds)) > 1 and len(set(news)) > 1:
        raise ValueError(
            "Rows of one call must not differ both in the columns that they compute and in those "
            f"that they read from the cache, got {news} and {olds}."
        )
    old = _right_aligned(num_old, max(olds))
    new = _right_aligned(num_new, max(news))
    is_padded = len(set(olds)) > 1 or len(set(news)) > 1
    index = new.clamp(min=0)
    return _Context(
        old=old.clamp(min=0) if max(olds) else None,
        tokens=inputs.tokens.gather(1, index) if max(news) else None,
        positions=inputs.positions.gather(1, index) if max(news) else None,
        mask=torch.cat([old, new], 1) >= 0 if is_padded else None,
        has_belief=None if all(belief_flags) else has_belief,
    )


def _right_aligned(counts: Int[Tensor, " B"], width: int) -> Int[Tensor, "B _"]:
    """Returns 0, ..., count - 1 at the right end of each line, and negative numbers before."""
    return torch.arange(width, device=counts.device) - (width - counts[:, None])


class _ContextCache(DynamicCache):
    """A cache of transformers that begins with old columns, and records the encoded columns.

    They are recorded because layers of sliding windows forget all but the last columns.
    """

    def __init__(self, config: Any, inputs: ForwardInputs, old: Int[Tensor, "B O"] | None) -> None:
        super().__init__(config=config)
        self._added: dict[int, tuple[Tensor, Tensor]] = {}
        self._stored, self._rows = inputs.kv_cache, rows_of(inputs)
        if self._stored is None or old is None:
            return
        for number in range(len(self.layers)):
            keys, values = self._stored.layer(number)
            super().update(self._read(keys, old), self._read(values, old), number)

    def _read(
        self, part: Float[Tensor, "R H K D"], old: Int[Tensor, "B O"]
    ) -> Float[Tensor, "B H O D"]:
        rows = part[self._rows]
        index = old.to(part.device)[:, None, :, None]
        return rows.gather(2, index.expand(-1, rows.shape[1], -1, rows.shape[3]))

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds encoded columns to a layer; the network calls this."""
        self._added[layer_idx] = (key_states, value_states)
        joined: tuple[Tensor, Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return joined

    def write(self, slots: Int[Tensor, "B N"]) -> None:
        """Stores the keys and values of the encoded columns in their slots."""
        assert self._stored is not None
        for number, states in self._added.items():
            for part, added in zip(self._stored.layer(number), states, strict=True):
                rows = torch.arange(len(part), device=part.device)[self._rows]
                part[rows[:, None], :, slots.to(part.device)] = added.transpose(1, 2)

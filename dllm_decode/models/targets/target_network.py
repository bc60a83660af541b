"""The interface of a causal target's network, and its implementation by transformers."""

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    import transformers

LayerKVs: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of each layer, (B, heads, slots, size) each."""


class CausalInputs(NamedTuple):
    """One forward of a causal network.

    Attributes:
        tokens: Ids of the columns.
        positions: Rotary positions of the columns.
        attend: (B, K): which keys hold a token; a column sees the keys up to its own. Or
            (B, W, K): the keys that each column sees. Keys are the slots, then the columns.
        layers: Keys and values of the slots; not changed.
        wanted: Columns whose logits are returned.
    """

    tokens: Int[Tensor, "B W"]
    positions: Int[Tensor, "B W"]
    attend: Bool[Tensor, "B K"] | Bool[Tensor, "B W K"]
    layers: LayerKVs
    wanted: Int[Tensor, " N"]


class CausalOutput(NamedTuple):
    """The result of a forward.

    Attributes:
        logits: Of the wanted columns; each predicts the token that follows.
        layers: Keys and values of the input slots, then of all columns.
    """

    logits: Float[Tensor, "B N V"]
    layers: LayerKVs


@runtime_checkable
class CausalNetwork(Protocol):
    """A causal language model that continues stored keys and values.

    Attributes:
        vocab_size: Number of logits, V.
        eos_ids: Tokens that end an answer.
        takes_positions: Columns may have any positions, as those of a draft tree do.
        heeds_masks: Known to heed masks and positions; else this is tested before the first tree.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    takes_positions: bool
    heeds_masks: bool

    @property
    def device(self) -> torch.device: ...

    def read(self, inputs: CausalInputs) -> CausalOutput:
        """Runs one forward without gradients."""
        ...


class TransformersNetwork:
    """A causal model of transformers, whose cache is extended and returned."""

    heeds_masks = False

    def __init__(self, model: "transformers.PreTrainedModel", *, name: str) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        layers = DynamicCache(config=model.config).layers
        if any(type(layer) is not DynamicLayer for layer in layers):
            raise ValueError(
                f"Every layer of a target must attend to all tokens before, got {name}, some "
                "layers of which see a window or keep a state, which cannot be rolled back. Use "
                "another."
            )
        self.model = model
        self.vocab_size = int(model.config.vocab_size)
        self.eos_ids = _eos_ids(model, name)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self.model.device

    def read(self, inputs: CausalInputs) -> CausalOutput:
        from transformers import DynamicCache

        cache = DynamicCache(inputs.layers or None)
        attend = inputs.attend
        out: Any = self.model(
            input_ids=inputs.tokens,
            attention_mask=attend.long() if attend.dim() == 2 else self._as_scores(attend),
            position_ids=inputs.positions,
            past_key_values=cache,
            use_cache=True,
            # Not a number: the head would then get a slice, for which the CPU's matrix product
            # copies all weights of the head.
            logits_to_keep=inputs.wanted,
        )
        return CausalOutput(out.logits, tuple((keys, values) for keys, values, _ in cache))

    def _as_scores(self, attend: Bool[Tensor, "B W K"]) -> Float[Tensor, "B 1 W K"]:
        # Not booleans, which only one of the library's attention functions can read.
        mask = torch.zeros_like(attend[:, None], dtype=self.model.dtype)
        return mask.masked_fill_(~attend[:, None], torch.finfo(mask.dtype).min)


def _eos_ids(model: "transformers.PreTrainedModel", name: str) -> tuple[int, ...]:
    configs = (model.generation_config, model.config)
    stated = (config.eos_token_id for config in configs if config is not None)
    eos_ids = next((ids for ids in stated if ids is not None), None)
    if eos_ids is None:
        raise ValueError(
            f"A target's generation config must say which tokens end an answer, got {name} without "
            "`eos_token_id`. Set it in generation_config.json."
        )
    return tuple(eos_ids) if isinstance(eos_ids, list) else (int(eos_ids),)

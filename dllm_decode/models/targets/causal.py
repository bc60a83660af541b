"""Causal language models that judge drafts: transformers models whose cache rolls back."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.sizes import round_up

if TYPE_CHECKING:
    import transformers

# Columns are padded to a multiple of this: libraries keep scratch for each shape.
_STRIDE = 16


class Past(NamedTuple):
    """Keys and values of the tokens that a causal model has read, batch axis first everywhere.

    Rows have read different numbers of tokens; each row's are the last ones of its slots.

    Attributes:
        lengths: Tokens read.
        layers: Keys and values of each layer, (B, heads, slots, size) each.
    """

    lengths: Int[Tensor, " B"]
    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def num_slots(self) -> int:
        """Slots of each row."""
        return self.layers[0][0].shape[2] if self.layers else 0


class Reading(NamedTuple):
    """What a causal model made of some tokens.

    Attributes:
        logits: Predictions of the tokens that follow, of the last tokens read.
        past: As before the reading.
        gaps: Slots between the past and the first token read, which hold nothing.
        layers: Keys and values of the past, of the gap and of everything read.
    """

    logits: Float[Tensor, "B N V"]
    past: Past
    gaps: Int[Tensor, " B"]
    layers: tuple[tuple[Tensor, Tensor], ...]

    def keep(self, num_kept: Int[Tensor, " B"]) -> Past:
        """Forgets all but the first so many tokens of what was read, a number for each row.

        At most once: where rows differ, what is kept is moved together in place.
        """
        lengths = self.past.lengths + num_kept
        num_slots = int(lengths.max())
        slots = torch.arange(num_slots, device=lengths.device)
        # The last slots of the past are followed by the gap, and that by what was read.
        is_new = slots >= num_slots - num_kept[:, None]
        held = slots + (self.past.num_slots + num_kept - num_slots)[:, None]
        # Slots before a row's first token are never attended to; any will do.
        held = torch.where(is_new, held + self.gaps[:, None], held).clamp(min=0)
        start = int(held[0, 0])
        if (held == slots + start).all():
            part = slice(start, start + num_slots)
            return Past(lengths, tuple((k[:, :, part], v[:, :, part]) for k, v in self.layers))
        index = held[:, None, :, None]
        return Past(lengths, tuple((_move(k, index), _move(v, index)) for k, v in self.layers))


class CausalTarget:
    """A causal language model that continues any number of rows, each at its own pace.

    Attributes:
        name: Shown in records and messages.
        vocab_size: Number of logits, V.
        num_shared_ids: Ids below this mean the same to the mask predictor; others are never said.
        eos_ids: Tokens that end an answer, from the generation config.
    """

    def __init__(
        self, model: "transformers.PreTrainedModel", *, name: str, num_shared_ids: int | None = None
    ) -> None:
        """Wraps a model in evaluation mode.

        Args:
            model: Any causal model whose every layer attends to all tokens before.
            name: Shown in records and messages.
            num_shared_ids: See the attribute. `None`: all, and the mask predictor must have as
                many; `load_target` compares tokenizers instead.

        Raises:
            ValueError: If some layer forgets, or no token is known to end an answer.
        """
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        layers = DynamicCache(config=model.config).layers
        if any(type(layer) is not DynamicLayer for layer in layers):
            raise ValueError(
                f"A target attends to all tokens before in every layer, got {name}, some of whose "
                "layers see a window or keep a state, which cannot be rolled back. Use another."
            )
        self.name = name
        self.vocab_size = int(model.config.vocab_size)
        self.num_shared_ids = self.vocab_size if num_shared_ids is None else num_shared_ids
        self.is_compared = num_shared_ids is not None
        self.eos_ids = _eos_ids(model, name)
        self._model = model

    def __repr__(self) -> str:
        return f"CausalTarget({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self._model.device

    def start(self, num_rows: int) -> Past:
        """Returns the past of rows that have read nothing."""
        return Past(torch.zeros(num_rows, dtype=torch.long, device=self.device), ())

    @torch.no_grad()
    def read(
        self,
        past: Past,
        tokens: Int[Tensor, "B Q"],
        counts: Int[Tensor, " B"],
        *,
        num_logits: int,
        first_logits: Int[Tensor, " B"] | None = None,
    ) -> Reading:
        """Reads on; one forward.

        Args:
            past: What was read before; not changed.
            tokens: What follows it; a row with fewer is filled up with anything.
            counts: Tokens of each row.
            num_logits: Of how many consecutive columns of each row logits are returned.
            first_logits: The first of them; `None`: the one with which the last of the Q columns is
                the last.
        """
        from transformers import DynamicCache

        if first_logits is None:
            first_logits = torch.full_like(counts, tokens.shape[1] - num_logits)
        # The head computes the same columns of all rows, so rows are moved until all want the same.
        first, behind = torch.stack([first_logits.max(), (counts - first_logits).max()]).tolist()
        gaps = first - first_logits
        width = first + max(behind, num_logits)
        # A prompt is read as it is, as often without any attention mask.
        width = round_up(width, _STRIDE) if past.num_slots else width
        tokens = _after_gaps(tokens, gaps, width=width)
        slots = torch.arange(past.num_slots, device=tokens.device)
        columns = torch.arange(width, device=tokens.device)
        wanted = columns[first : first + round_up(num_logits, _STRIDE)]
        columns = columns - gaps[:, None]
        attend = torch.cat(
            [
                slots >= past.num_slots - past.lengths[:, None],
                (columns >= 0) & (columns < counts[:, None]),
            ],
            dim=1,
        )
        cache = DynamicCache(past.layers or None)
        out = self._model(
            input_ids=tokens,
            attention_mask=attend.long(),
            position_ids=past.lengths[:, None] + columns.minimum(counts[:, None] - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            # Not a number: the head would be given a slice, for which the CPU's matrix product
            # copies all its weights.
            logits_to_keep=wanted,
        )
        layers = tuple((keys, values) for keys, values, _ in cache)
        return Reading(out.logits[:, :num_logits], past, gaps, layers)


def _eos_ids(model: "transformers.PreTrainedModel", name: str) -> tuple[int, ...]:
    config = model.generation_config
    found = None if config is None else config.eos_token_id
    if found is None:
        found = model.config.eos_token_id
    if found is None:
        raise ValueError(
            f"A target's generation config says which tokens end an answer, got {name} without "
            "`eos_token_id`. Set it in generation_config.json."
        )
    return tuple(found) if isinstance(found, list) else (int(found),)


def _after_gaps(
    tokens: Int[Tensor, "B Q"], gaps: Int[Tensor, " B"], *, width: int
) -> Int[Tensor, "B W"]:
    """Moves each row to the right; what is put before and behind it is arbitrary."""
    columns = torch.arange(width, device=tokens.device) - gaps[:, None]
    return tokens.gather(1, columns.clamp(0, tokens.shape[1] - 1))


def _move(
    part: Float[Tensor, "B H S D"], index: Int[Tensor, "B 1 N 1"]
) -> Float[Tensor, "B H N D"]:
    """Moves slots to the front in place, so that one layer at a time is held twice."""
    moved = part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3]))
    return part[:, :, : index.shape[2]].copy_(moved)

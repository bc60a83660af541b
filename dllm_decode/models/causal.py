"""Causal language models that judge drafts: transformers models whose cache rolls back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging

from dllm_decode.models.load import find_model


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
        layers: Keys and values of the past and of everything read.
    """

    logits: Float[Tensor, "B N V"]
    past: Past
    layers: tuple[tuple[Tensor, Tensor], ...]

    def keep(self, num_kept: Int[Tensor, " B"]) -> Past:
        """Forgets all but the first so many tokens of what was read, a number for each row."""
        lengths = self.past.lengths + num_kept
        # What a row keeps is contiguous, from its first token in the past to the last one kept.
        ends = self.past.num_slots + num_kept
        num_slots = int(lengths.max())
        starts = ends - num_slots
        if (starts == starts[0]).all():
            start = int(starts[0])
            part = slice(start, start + num_slots)
            layers = tuple((k[:, :, part], v[:, :, part]) for k, v in self.layers)
            return Past(lengths, layers)
        columns = starts[:, None] + torch.arange(num_slots, device=starts.device)
        # Slots before a row's first token are never attended to; any will do.
        index = columns.clamp(min=0)[:, None, :, None]
        layers = tuple((_gather(k, index), _gather(v, index)) for k, v in self.layers)
        return Past(lengths, layers)


class CausalTarget:
    """A causal language model that continues any number of rows, each at its own pace.

    Attributes:
        name: Shown in records and messages.
        vocab_size: Number of logits, V.
        num_shared_ids: Ids below this mean the same to the mask predictor; others are never said.
        eos_ids: Tokens that end an answer, from the generation config.
    """

    def __init__(
        self, model: PreTrainedModel, *, name: str, num_shared_ids: int | None = None
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
    ) -> Reading:
        """Reads on; one forward.

        Args:
            past: What was read before; not changed.
            tokens: What follows it; a row with fewer is filled up with anything.
            counts: Tokens of each row.
            num_logits: Of how many of the Q columns, counted from the last, logits are returned.
        """
        width = tokens.shape[1]
        slots = torch.arange(past.num_slots, device=tokens.device)
        columns = torch.arange(width, device=tokens.device)
        attend = torch.cat(
            [
                slots >= past.num_slots - past.lengths[:, None],
                columns < counts[:, None],
            ],
            dim=1,
        )
        cache = DynamicCache(past.layers or None)
        out = self._model(
            input_ids=tokens,
            attention_mask=attend.long(),
            position_ids=past.lengths[:, None] + columns,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=num_logits,
        )
        layers = tuple((keys, values) for keys, values, _ in cache)
        return Reading(out.logits, past, layers)


def load_target(
    source: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> CausalTarget:
    """Loads a causal language model that judges a mask predictor's drafts.

    No remote code is run.

    Args:
        source: The name of an embedded model such as "mini-ar", a folder, or a hub id such as
            "Qwen/Qwen2.5-7B-Instruct"; tried in this order.
        tokenizer: That of the mask predictor. Its ids must be those of the target.
        device: Where the model goes.
        dtype: Of all parameters; `None` keeps that of the checkpoint.
        revision: Branch, tag or commit of a hub id.

    Raises:
        FileNotFoundError: If the source does not exist.
        OSError: If a hub id cannot be downloaded.
        ValueError: If an id stands for different tokens, or the model cannot roll back.
    """
    folder = find_model(source, revision)
    own = AutoTokenizer.from_pretrained(folder)
    name = Path(source).resolve().name if Path(source).is_dir() else str(source)
    num_shared_ids = count_shared_ids(own, tokenizer, name=name)
    with _silence():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype or "auto", device_map={"": torch.device(device)}
        )
    return CausalTarget(
        model.eval().requires_grad_(False), name=name, num_shared_ids=num_shared_ids
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps transformers from drawing a progress bar: a library leaves that to its caller."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def count_shared_ids(
    target: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase, *, name: str
) -> int:
    """Compares two tokenizers id by id and returns how many ids they share, from 0.

    The mask predictor's may have more, such as [MASK]; the target's may not.

    Raises:
        ValueError: If some id stands for different tokens, or is the target's alone.
    """
    theirs = {token: text for text, token in tokenizer.get_vocab().items()}
    own = {token: text for text, token in target.get_vocab().items()}
    odd = sorted(token for token, text in own.items() if theirs.get(token) != text)
    if odd:
        example = odd[0]
        raise ValueError(
            f"Both models have the same token at every id of the target's tokenizer, got "
            f"{len(odd)} ids that differ: {example} is {own[example]!r} for {name} and "
            f"{theirs.get(example)!r} for the mask predictor. Use a target with its tokenizer."
        )
    return max(own) + 1


def _eos_ids(model: PreTrainedModel, name: str) -> tuple[int, ...]:
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


def _gather(
    part: Float[Tensor, "B H S D"], index: Int[Tensor, "B 1 N 1"]
) -> Float[Tensor, "B H N D"]:
    return part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3]))

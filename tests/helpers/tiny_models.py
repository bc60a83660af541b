"""The tiny official checkpoints, one of each family, and mask predictors around them.

A new family needs a folder in golden/data/models, and a line in `OPTIONS` where its config.json
does not say everything.
"""

import json
import shutil
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models import MaskedTransformer, load_model, new_llada
from dllm_decode.models.families import FAMILIES as REGISTERED
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma
from dllm_decode.models.predictors.xlnet import XLNet

MODELS = Path(__file__).parents[1] / "golden" / "data" / "models"
MASK = {"mask_id": 508}
# Options that config.json leaves open (a user of the real checkpoint gives them too), and defaults
# that are too large here.
OPTIONS: dict[str, dict[str, Any]] = {
    "a2d_llama": MASK,
    "a2d_qwen2": MASK,
    "a2d_qwen3": MASK,
    "fast_dllm_v2": MASK,
    "llada2_moe": MASK | {"block_length": 8},
    "llada2_2_moe": MASK,
    "llada_moe": MASK,
    "open_dllm": MASK | {"family": "open_dllm"},
    "sdar_moe": MASK,
    "stable_diffcoder": MASK,
}
EVERY_FAMILY = tuple(REGISTERED)

load_without_tokenizer = partial(load_model, tokenizer="optional")
"""`load_model` for folders without tokenizer files, as the tiny checkpoints are."""


def new_tiny(**changes: Any) -> MaskedTransformer:
    """Returns a new LLaDA of two layers, as small as can be."""
    sizes = {
        "vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
        "mlp_hidden_size": 24, "mask_id": 49, "eos_ids": (40,),
    }  # fmt: skip
    return new_llada(**sizes | changes)


def load_tiny(key: str, /, **options: Any) -> MaskedTransformer:
    """Loads the tiny checkpoint of a family, with options of `load_model`."""
    model, _ = load_without_tokenizer(
        MODELS / key, **{"device": "cpu", **OPTIONS.get(key, {}), **options}
    )
    return model


def config_of(key: str) -> dict[str, Any]:
    """Reads the configuration of the tiny checkpoint of a family."""
    return json.loads((MODELS / key / "config.json").read_text())


@cache
def recorded_model(
    family: str, block_length: int, eos_id: int | None = None, *, dtype: torch.dtype = torch.float32
) -> MaskedTransformer:
    """Loads the tiny checkpoint of a family with the block length and the EOS of a recorded run."""
    model = load_tiny(family, dtype=dtype, **MASK)
    if eos_id is not None:
        model.eos_ids = (eos_id,)
    if model.causal_block_length:
        model.causal_block_length = block_length
    return model


def edit_config(folder: Path, **changes: object) -> None:
    """Changes keys of a model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shape_of(key: str) -> NetworkConfig:
    """Reads the sizes and switches of the tiny checkpoint of a family."""
    options = {name: value for name, value in OPTIONS.get(key, {}).items() if name != "family"}
    return REGISTERED[key].read(config_of(key), **options).shape


def _one_of_each_kind() -> tuple[str, ...]:
    """Returns a family of each kind that the engine knows: shifted or not, block-causal or not."""
    kinds: dict[tuple[int, bool], str] = {}
    for key, family in REGISTERED.items():
        kinds.setdefault((family.logit_shift, family.block_length > 0), key)
    return tuple(kinds.values())


FAMILIES = _one_of_each_kind()
"""One family of each kind, for laws that are too long for all of them."""
BIDIRECTIONAL = next(key for key in FAMILIES if not REGISTERED[key].block_length)
BLOCK_CAUSAL = next(key for key in FAMILIES if REGISTERED[key].block_length)
FULLY_CONFIGURED = tuple(family for family in FAMILIES if family not in OPTIONS)
"""Families among these that load without options."""
LAW_OPTIONS: dict[str, dict[str, Any]] = {
    key: OPTIONS.get(key, {}) | ({"block_length": 4} if family.block_length else {})
    for key, family in REGISTERED.items()
}
"""As `OPTIONS`, with blocks of four tokens where they are of a fixed length."""


@cache
def tiny(family: str) -> MaskedTransformer:
    return load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family])


def logprobs_of_columns(model: MaskedTransformer, canvas: Tensor) -> Tensor:
    """Returns log-probabilities of the tokens of each column of a canvas, without the engine."""
    columns = torch.arange(len(canvas))
    attend = None
    if model.causal_block_length:
        blocks = columns // model.causal_block_length
        attend = (blocks[:, None] >= blocks)[None]
    hidden = model.transformer(canvas[None], columns[None], attend=attend)
    logits = model.transformer.head(hidden)[0].clone()
    logits[:, [model.mask_id, *model.banned_ids]] = -torch.inf
    # A shifted model predicts a column at the one before it.
    return logits.roll(model.logit_shift, 0).log_softmax(-1)


GEMMA = MODELS.parent / "uniform_state" / "model_a"
"""The tiny official checkpoint of DiffusionGemma: canvases of 16, a sliding window of 16."""
_GEMMA_WORDS = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 106: "<turn>", 511: "<image>"}


@cache
def tiny_gemma() -> DiffusionGemma:
    model, _ = load_without_tokenizer(GEMMA, device="cpu", dtype="float32")
    return model


@cache
def load_xlnet(name: str, *, mask_id: int) -> XLNet:
    """Loads a tiny any-subset model, `tiny_xlnet` or `law_xlnet`, in float64."""
    folder = MODELS.parent / "assd" / name
    model, _ = load_without_tokenizer(folder, device="cpu", dtype="float64", mask_id=mask_id)
    return model


def tokenizer_of(words: list[str], **options: Any) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of words between spaces, numbered in their order."""
    ids = {word: token for token, word in enumerate(words)}
    split = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    split.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=split, unk_token="<unk>", **options)


def write_gemma(folder: Path) -> Path:
    """Writes the tiny DiffusionGemma with a tokenizer, in which token 20 is the word w20."""
    shutil.copytree(GEMMA, folder, dirs_exist_ok=True)
    words = [_GEMMA_WORDS.get(token, f"w{token}") for token in range(tiny_gemma().vocab_size)]
    tokenizer = tokenizer_of(
        words, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>", mask_token="<unk>",
        padding_side="left",
    )  # fmt: skip
    tokenizer.chat_template = "{{ bos_token }} {{ messages[-1]['content'] }}"
    tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Spied:
    """A mask predictor that keeps its calls, and which token each slot was computed from last.

    The notes are a further layer of the cache, so that they move with the keys of their row.
    """

    model: MaskedTransformer
    calls: list[ForwardInputs] = field(default_factory=list)
    memories: list[KVCache] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in (
            "name", "vocab_size", "mask_id", "eos_ids", "banned_ids", "logit_shift",
            "causal_block_length", "max_length", "device",
        ):  # fmt: skip
            setattr(self, name, getattr(self.model, name))

    @property
    def held(self) -> Tensor:
        """The token that each slot of the last cache was computed from; -1 if there is none yet."""
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
        rows = torch.arange(inputs.kv_cache.keys.shape[1])
        return rows if inputs.rows is None else rows[inputs.rows]

    def slots_of(self, inputs: ForwardInputs) -> Tensor:
        if isinstance(inputs.slots, slice):
            return torch.arange(inputs.kv_cache.num_slots)[inputs.slots].expand_as(inputs.tokens)
        return inputs.slots

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        kv_cache = self.model.new_kv_cache(num_rows, num_slots)
        notes = kv_cache.keys.new_zeros(2, 1, num_rows, 1, num_slots, 1)
        self.memories.append(replace(kv_cache, further=(KVCache(*notes),)))
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
    """Returns the token of each slot of a spied cache, counted from 1, and its position."""
    (notes,) = kv_cache.further
    return notes.keys[0, :, 0, :, 0], notes.values[0, :, 0, :, 0]


TINY_PROMPTS = [
    [17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90], [3, 1], [62, 8, 400, 21],
    [200], [45, 46, 47, 48, 49, 50, 51],
]  # fmt: skip


class Counted(Spied):
    """Keeps its calls without notes on slots, which would have to follow the rows."""

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        self.calls.append(inputs)
        return self.model.predict(inputs)


def ending(family: str) -> Counted:
    """Returns a model with many EOS ids, so that answers end early."""
    model = Counted(tiny(family))
    model.eos_ids = (model.eos_ids[0], *range(0, 500, 12))
    return model


def templates_for(mask_id: int, eos_id: int) -> list[list[int]]:
    """Returns a template for each of the prompts; comments describe some of them."""
    return [
        [mask_id, 33, mask_id, mask_id, 35],
        [],
        # The first block and half of the second, so that it begins while others are at work.
        [70, 71, 72, 73, 74, 75, 76, 77, 78, 79, mask_id, 81],
        # An answer that has ended before anything is decoded.
        [91, 92, 93, eos_id],
        [mask_id] * 13 + [55, 56],
        # An EOS with masks before it.
        [mask_id] * 6 + [eos_id],
        [44],
    ]

"""Describes model families: how their authors write config.json and name tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dllm_decode.models.families.reader import (
    MOST_LENGTH,
    Config,
    ConfigReader,
    as_json,
    is_integer,
)
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.tensor_names import pattern_of
from dllm_decode.models.network.transformer import Transformer


@dataclass(frozen=True)
class CheckpointFacts:
    """The facts that a configuration states about a model.

    Attributes:
        shape: Sizes and switches of the transformer.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer, the configured one first.
        causal_block_length: Tokens per block of a block-causal model, else 0.
    """

    shape: NetworkConfig
    mask_id: int
    eos_ids: tuple[int, ...]
    causal_block_length: int

    def __post_init__(self) -> None:
        """Raises ValueError if blocks would end where only some tokens choose their experts."""
        whole = self.shape.routing_block_length
        if self.causal_block_length % whole:
            raise ValueError(
                f"block_length must be a multiple of {whole}, the tokens that choose their experts "
                f"together, got {self.causal_block_length}."
            )


class Refusal(NamedTuple):
    """A configuration key whose other values would silently give wrong logits.

    Attributes:
        key: The key in config.json; a key inside an object is written "net.activation".
        allowed: Values that are understood, `None` for null; an absent key is understood too. The
            message names the first one.
    """

    key: str
    allowed: tuple[object, ...]

    @property
    def required(self) -> str:
        """The value that is asked for, as JSON has it."""
        first = self.allowed[0]
        if first is None:
            return "absent or null"
        return str(first).lower() if isinstance(first, bool) else repr(first)


@dataclass(frozen=True)
class Family:
    """How one family writes its checkpoints.

    Attributes:
        name: Shown in messages.
        architecture: `architectures[0]` of its config.json. `model_type` does not tell families
            apart: LLaDA and LLaDA-MoE both say "llada".
        names: Our names of tensors (docs/extending/family.md) to the official ones; `{n}` is
            the layer, `{e}` the expert. Names without a tensor in a network are ignored.
            Where a checkpoint has one tensor for gate and up, or for queries, keys and values, with
            their rows in this order, name `gate_up.weight` or `qkv.weight` instead.
        read_shape: Sizes and switches from config.json.
        refusals: Switches this package does not implement.
        mask_id: [MASK] if neither the configuration nor the tokenizer has it; `None`: only the
            caller knows it.
        eos_id: EOS if the configuration has none; `None`: the tokenizer's.
        eos_keys: Keys of config.json that may hold EOS; a key inside an object is "tokens.eos".
        mask_keys: Keys of config.json that may hold the [MASK] token, likewise.
        end_of_turn_ids: Further ids that end an answer, where the vocabulary is that large.
        logit_shift: 1 where the logits at a column predict the next.
        block_length: Tokens per block if the configuration has none; 0: attention is
            bidirectional unless the caller says otherwise.
        block_keys: Keys of config.json that may hold the block length.
        may_be_block_causal: A caller may give a block length; else attention is bidirectional.
        fast_tokenizer: tokenizer.json says how texts are split. Else the rules are those of
            Qwen2Tokenizer, which also reads vocab.json and merges.txt, unless
            tokenizer_config.json names a class without rules (PreTrainedTokenizerFast).
        is_causal_too: Under a causal mask the logits at a column predict the next token, whatever
            `logit_shift` is for the other mode.
        is_named_by_caller: config.json is that of an ordinary autoregressive model, so that the
            caller must name the family.
    """

    name: str
    architecture: str
    names: Mapping[str, str]
    read_shape: Callable[[ConfigReader], NetworkConfig]
    refusals: tuple[Refusal, ...]
    mask_id: int | None
    eos_id: int | None
    eos_keys: tuple[str, ...] = ("eos_token_id",)
    mask_keys: tuple[str, ...] = ("mask_token_id",)
    end_of_turn_ids: tuple[int, ...] = ()
    logit_shift: int = 0
    block_length: int = 0
    block_keys: tuple[str, ...] = ()
    may_be_block_causal: bool = False
    fast_tokenizer: bool = False
    is_causal_too: bool = False
    is_named_by_caller: bool = False

    def tensors(self, transformer: Transformer) -> dict[str, Tensor]:
        """Returns the views of a network that a checkpoint's tensors are copied to, by their names.

        Raises:
            ValueError: If `names` lacks a tensor of the network, or has one name for two.
        """
        views: dict[str, Tensor] = {}
        missing: dict[str, None] = {}
        for name, part in transformer.parts(self.names).items():
            pattern, numbers = pattern_of(name)
            if pattern not in self.names:
                missing[pattern] = None
                continue
            official_name = self.names[pattern].format(**numbers)
            if official_name in views:
                raise ValueError(
                    f"The names of the family {self.name} must tell tensors apart, got "
                    f"{official_name!r} for {name!r} and for another. Is {{n}} or {{e}} missing?"
                )
            views[official_name] = part
        if missing:
            raise ValueError(
                f"The names of the family {self.name} must have every tensor of its network, got "
                f"none for {', '.join(missing)}."
            )
        return views

    def read(
        self,
        config: Config,
        *,
        file: str = "config.json",
        mask_id: int | None = None,
        block_length: int | None = None,
        tokenizer_mask_id: int | None = None,
        tokenizer_eos_id: int | None = None,
        generation: ConfigReader | None = None,
    ) -> CheckpointFacts:
        """Reads a config.json.

        Args:
            config: The whole file.
            file: Named in errors.
            mask_id: Overrides what the file or the tokenizer says, or the family's default.
            block_length: Overrides what the file says, or the family's default.
            tokenizer_mask_id: The tokenizer's [MASK] token, which the file must not contradict.
            tokenizer_eos_id: EOS if neither the files nor the family name it.
            generation: The checkpoint's generation_config.json, whose special tokens are used if
                config.json has none; its EOS tokens are always added.

        Raises:
            ValueError: If a key is missing, has an invalid value, or names something that is not
                implemented.
        """
        reader = ConfigReader(config, file=file)
        self._require_allowed(reader)
        shape = self._shape(reader)
        further = ConfigReader({}) if generation is None else generation
        readers = (reader, further)
        return CheckpointFacts(
            shape,
            self._mask_id(readers, mask_id, tokenizer_mask_id, shape.vocab_size),
            self._eos_ids(readers, tokenizer_eos_id, shape.vocab_size),
            self._block_length(reader, block_length),
        )

    def _require_allowed(self, config: ConfigReader) -> None:
        for refusal in self.refusals:
            if not config.is_one_of(refusal.key, refusal.allowed):
                raise ValueError(
                    f"{config.file}: {self.name} checkpoints need {refusal.key!r} to be "
                    f"{refusal.required}, got {as_json(config.value(refusal.key))}. This variant "
                    "is not implemented; choose another checkpoint."
                )

    def _shape(self, config: ConfigReader) -> NetworkConfig:
        try:
            return self.read_shape(config)
        except ValueError as error:
            # Values that are valid one by one may contradict each other.
            if config.file in str(error):
                raise
            raise ValueError(f"{config.file} of a {self.name} checkpoint: {error}") from None

    def _mask_id(
        self,
        readers: tuple[ConfigReader, ConfigReader],
        caller_id: int | None,
        tokenizer_id: int | None,
        vocab_size: int,
    ) -> int:
        """Returns the id of [MASK]: the caller's, else the config's, tokenizer's or family's."""
        config, generation = readers
        if not any(map(config.has, self.mask_keys)) and generation.has("mask_token_id"):
            config = generation
        key = next((key for key in self.mask_keys if config.has(key)), None)
        if caller_id is None and key is not None:
            stated = config.integer(key, most=vocab_size - 1)
            if tokenizer_id not in (None, stated):
                raise ValueError(
                    f"{config.file}: {key!r} must be the [MASK] token of the tokenizer, "
                    f"{tokenizer_id}, got {stated}. Pass mask_id to say which of them is right."
                )
            return stated
        ids = (token for token in (caller_id, tokenizer_id, self.mask_id) if token is not None)
        mask_id = next(ids, None)
        if mask_id is None or not is_integer(mask_id, 0, vocab_size - 1):
            raise ValueError(
                f"{config.file} of a {self.name} checkpoint must say which token is [MASK], an id "
                f"in [0, {vocab_size}), got {'none' if mask_id is None else repr(mask_id)}. Pass "
                f"mask_id, or set {self.mask_keys[0]!r} there."
            )
        return mask_id

    def _eos_ids(
        self,
        readers: tuple[ConfigReader, ConfigReader],
        tokenizer_id: int | None,
        vocab_size: int,
    ) -> tuple[int, ...]:
        """Returns the tokens that end an answer: those stated, and those that end a turn."""
        config, generation = readers
        generation_ids = generation.integers("eos_token_id", [], most=vocab_size - 1)
        default = self.eos_id
        if default is None and tokenizer_id is not None and tokenizer_id < vocab_size:
            default = tokenizer_id
        key = next((key for key in self.eos_keys if config.has(key)), self.eos_keys[0])
        if default is None and not generation_ids and not config.has(key):
            raise ValueError(
                f"{config.file} of a {self.name} checkpoint must say which token ends an answer, "
                f"got nothing under {' or '.join(map(repr, self.eos_keys))}, and no tokenizer "
                "whose eos_token is in the vocabulary. Add the key; or, for a family of your own, "
                "change its eos_keys."
            )
        default_ids = generation_ids or (None if default is None else [default])
        stated = config.integers(key, default_ids, most=vocab_size - 1)
        if not stated:
            raise ValueError(f"{config.file}: {key!r} must be one token or more, got [].")
        turn_ends = [token for token in self.end_of_turn_ids if token < vocab_size]
        return tuple(dict.fromkeys([*stated, *turn_ends, *generation_ids]))

    def _block_length(self, config: ConfigReader, block_length: int | None) -> int:
        """Returns the block length: the caller's, else the config's or the family's."""
        if block_length is not None:
            if not (self.block_length or self.may_be_block_causal):
                raise ValueError(
                    f"{self.name} checkpoints attend in both directions, got block_length="
                    f"{block_length}, which would hide later blocks. Leave block_length out."
                )
            if not is_integer(block_length, 1, MOST_LENGTH):
                raise ValueError(
                    f"block_length must be an integer from 1 to {MOST_LENGTH}, got "
                    f"{block_length!r}."
                )
            return block_length
        for key in self.block_keys:
            if config.has(key):
                return config.positive_int(key, most=MOST_LENGTH)
        return self.block_length

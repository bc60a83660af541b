"""The options of a decode except plug-ins. This module loads no torch, so that help is fast.

A new option is a field of `DecodeConfig`, with its documentation, and a line of `DecodeOptions`.
Command lines, sweep files and the harness take names, types, defaults and help from the fields.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from dllm_decode.core.other_names import HINTS, refusal
from samplers.checks import (
    require_bool,
    require_finite_non_negative,
    require_ids,
    require_integer,
    shown,
)

ConfidenceFrom: TypeAlias = Literal["raw", "tempered"]
"""Which distribution a confidence is read from, see `DecodeConfig.confidence_from`."""

DEFAULT_BLOCK_LENGTH = 32
MAX_GEN_LENGTH = 2**20
MAX_TOP_K = 2**31 - 1

_PLUGINS = ("sampler", "cache", "verifier", "blocks", "observers", "stop", "templates")


class RequestOptions(TypedDict, total=False):
    """The fields of `DecodeConfig` that may differ between the rows of one decode."""

    gen_length: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_at_eos: bool
    truncate_at_eos: bool


class DecodeOptions(RequestOptions, total=False):
    """The fields of `DecodeConfig` as keywords of a function, for editors and type checkers."""

    block_length: int | None
    cfg_scale: float
    confidence_from: ConfidenceFrom
    banned_ids: tuple[int, ...]
    deferred_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Options of a decode except plug-ins; the same for `decode`, evaluation and benchmarks.

    The first sentence of a field's documentation is the help of the option on command lines.

    Attributes:
        gen_length: Answer length in tokens, including those that fill up the answer after its EOS.
        block_length: Tokens per block. `None`: the model's own, else 32, never more than
            `gen_length`. Equal to `gen_length`: no block order at all. A block-causal model needs
            a multiple of its own block length.
        temperature: Temperature of the proposals (Gumbel-max); 0 is greedy. Other values must be
            between 1e-30 and 1e30, so that quotients of logits are finite.
        top_p: Proposals come from the smallest set of tokens with this much probability; 1: all.
        top_k: Proposals come from this many most likely tokens; 0, or the size of the vocabulary:
            all.
        cfg_scale: Strength s of classifier-free guidance; 0: none. Each canvas takes a second
            forward, with [MASK] for the prompt and given tokens, and the logits are
            second + (1 + s) (first - second).
        confidence_from: Confidences are probabilities at temperature 1 ("raw", as in LLaDA), or
            at `temperature`, after `top_p` and `top_k` ("tempered", as in Dream). Always
            "tempered" if `top_p` or `top_k` is set.
        banned_ids: Token ids that are never proposed, in addition to the model's own.
        deferred_ids: Token ids whose proposals have next to no confidence, so that other positions
            come first. LLaDA's `confidence_eos_eot_inf` names the EOS and the end of the turn.
        seed: Seed of the noise, in signed 64 bits. A row's noise depends only on the seed, the
            row's tokens and, unless `seeds` are given, the place of its prompt.
        stop_at_eos: Stop a row once an EOS is committed with no mask before it.
        truncate_at_eos: Write EOS over all tokens after an EOS as soon as it is committed. This
            happens even while masks before it are left; given tokens stay. It saves forwards, but
            the first EOS that the sampler commits fixes the answer's length (Learn2PD's
            end-of-text prediction, d3LLM's early stop).

    Raises:
        ValueError: If a field is outside its range.
    """

    gen_length: int = 256
    block_length: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    cfg_scale: float = 0.0
    confidence_from: ConfidenceFrom = "raw"
    banned_ids: tuple[int, ...] = ()
    deferred_ids: tuple[int, ...] = ()
    seed: int = 0
    stop_at_eos: bool = True
    truncate_at_eos: bool = False

    def __post_init__(self) -> None:
        require_integer("gen_length", self.gen_length, least=1, most=MAX_GEN_LENGTH)
        if self.block_length is not None:
            require_integer("block_length", self.block_length, least=1, most=MAX_GEN_LENGTH)
        require_finite_non_negative("temperature", self.temperature)
        if self.temperature and not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(
                f"temperature must be 0, or between 1e-30 and 1e30, got {shown(self.temperature)}."
            )
        require_finite_non_negative("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {shown(self.top_p)}.")
        require_integer("top_k", self.top_k, least=0, most=MAX_TOP_K)
        require_finite_non_negative("cfg_scale", self.cfg_scale)
        if self.confidence_from not in get_args(ConfidenceFrom):
            raise ValueError(
                f'confidence_from must be "raw" or "tempered", got {shown(self.confidence_from)}.'
            )
        require_ids("banned_ids", self.banned_ids)
        require_ids("deferred_ids", self.deferred_ids)
        require_integer("seed", self.seed, least=-(2**63), most=2**63 - 1)
        require_bool("stop_at_eos", self.stop_at_eos)
        require_bool("truncate_at_eos", self.truncate_at_eos)

    @property
    def is_tempered(self) -> bool:
        """True if confidences describe the distribution that proposals are drawn from."""
        return self.confidence_from == "tempered" or self.top_p < 1.0 or self.top_k > 0

    def resolved_block_length(self, causal_block_length: int, *, model_name: str) -> int:
        """Returns the block length of a decode.

        Args:
            causal_block_length: As `MaskPredictor.causal_block_length`: 0 for a model that attends
                in both directions everywhere.
            model_name: The model's name, for messages.

        Raises:
            ValueError: If the block length fits neither the answer nor the model.
        """
        if self.block_length is None:
            return causal_block_length or min(DEFAULT_BLOCK_LENGTH, self.gen_length)
        if self.block_length > max(self.gen_length, causal_block_length):
            raise ValueError(
                f"block_length must be between 1 and gen_length={self.gen_length} tokens, "
                f"got {self.block_length}."
            )
        if causal_block_length and self.block_length % causal_block_length:
            raise ValueError(
                f"block_length must be a multiple of {causal_block_length}, since {model_name} "
                f"attends in blocks of {causal_block_length} tokens, got {self.block_length}."
            )
        return self.block_length

    def updated(self, **options: Unpack[DecodeOptions]) -> "DecodeConfig":
        """Returns the config with some fields replaced; `None` keeps a field as it is.

        Raises:
            TypeError: If a keyword is not a field.
            ValueError: If a field is outside its range.
        """
        names = [option.name for option in fields(self)]
        for name in options:
            if name not in names:
                raise TypeError(refusal(name, "a decode", [*names, *_PLUGINS], HINTS))
        changes: Any = {name: value for name, value in options.items() if value is not None}
        return replace(self, **changes)


def require_config(config: object) -> None:
    """Raises ValueError unless the argument is a `DecodeConfig`."""
    if not isinstance(config, DecodeConfig):
        raise ValueError(f"config must be a DecodeConfig, got {shown(config)}.")

"""The settings of the harness adapter, and how they are read from text."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Protocol, cast, get_args, runtime_checkable

from dllm_decode import CachePolicy, DecodeConfig, MaskPredictor, Verifier
from dllm_decode.blocks import BlockSchedule, Sequential
from eval.arguments import Nll, Plugins
from eval.lm_harness.estimators import Estimator, LeftToRight, MonteCarlo
from eval.lm_harness.generation import AnswerLength
from eval.runs.command import load
from eval.runs.models import DTYPES
from eval.runs.options import OPTIONS, READERS, positive
from eval.runs.plugins import (
    check_verifier,
    parse_blocks,
    parse_cache,
    parse_sampler,
    parse_verifier,
)
from eval.runs.records import digest
from eval.tasks import tokenizer
from samplers import Sampler

# The harness' own keys are hashes.
_STAMP = "settings of dllm_decode"


@runtime_checkable
class LmTokenizer(tokenizer.Tokenizer, Protocol):
    """A tokenizer with the names and special tokens that the adapter needs."""

    name_or_path: str
    bos_token_id: int | None
    all_special_ids: list[int]


@dataclass(frozen=True)
class LmSettings:
    """Everything that decides an answer, except the request itself.

    Attributes:
        model: Embedded name, folder or hub id.
        revision: Branch, tag or commit of a hub id.
        dtype: Of the parameters.
        sampler: Which positions to commit.
        cache: Which columns to recompute.
        verifier: How a round's forwards are run, and who decides.
        estimator: How likelihoods are computed.
        decoding: All other options of the decode.
        from_task: Options of the decode that a task decides: "gen_length", "temperature".
        batch_size: Rows of a forward.
        blocks: Which positions are open.
    """

    model: str
    revision: str | None
    dtype: str
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    estimator: Estimator
    decoding: DecodeConfig = DecodeConfig()
    from_task: tuple[str, ...] = ("temperature",)
    batch_size: int = 16
    blocks: BlockSchedule = Sequential()

    @property
    def gen_length(self) -> AnswerLength:
        """Answer length in tokens, or "task"; see `Generation.of`."""
        return "task" if "gen_length" in self.from_task else self.decoding.gen_length

    @property
    def temperature(self) -> float | None:
        """Temperature of all answers; None takes the task's."""
        return None if "temperature" in self.from_task else self.decoding.temperature

    def described(self) -> dict[str, Any]:
        """Returns all of it, ready for JSON."""
        names = [f.name for f in fields(self) if f.name not in ("decoding", "from_task")]
        own = {name: getattr(self, name) for name in names} | asdict(self.decoding)
        policies = ("sampler", "cache", "verifier", "blocks", "estimator")
        own |= {name: repr(own[name]) for name in policies}
        return own | dict.fromkeys(self.from_task, "task")

    def fingerprint(self) -> str:
        """Returns a short hash of all of it."""
        return digest(self.described())

    def claim(self, store: MutableMapping[str, Any]) -> None:
        """Marks a store of answers as belonging to these settings.

        Raises:
            ValueError: If it has answers of other settings, or of something else.
        """
        own = self.described()
        if len(store) and store.get(_STAMP) != own:
            held = store.get(_STAMP) or {}
            differing = [
                f"{name}: {held.get(name)!r} there, {value!r} here"
                for name, value in own.items()
                if held.get(name) != value
            ]
            raise ValueError(
                "A response cache must hold answers of one setting, got one of another "
                f"({'; '.join(differing)}). Give another path in use_cache."
            )
        store[_STAMP] = own


class Opened(NamedTuple):
    """A model that is ready to answer, with its settings."""

    model: MaskPredictor
    tokenizer: LmTokenizer
    settings: LmSettings


@dataclass(frozen=True)
class LmOptions(Plugins):
    """The settings as text and numbers, as the harness' `model_args` give them.

    Attributes:
        pretrained: Embedded name, folder or hub id of the model.
        revision: Branch, tag or commit of a hub id.
        device: Such as "cpu"; "cuda" is each process's own.
        dtype: Of the parameters; None keeps the checkpoint's.
        nll: "mc" or "l2r", see `MonteCarlo` and `LeftToRight`.
        mc_num: Mask patterns an answer, for "mc".
        batch_size: Rows of a forward.
        decoding: Options of the decode that are given, by name; `gen_length` may be "task".
    """

    pretrained: str = "mini"
    revision: str | None = None
    device: str = "cpu"
    dtype: str | None = None
    nll: str = "mc"
    mc_num: int = 128
    batch_size: int = 16
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.nll not in get_args(Nll):
            raise ValueError(f"nll must be one of {', '.join(get_args(Nll))}, got {self.nll!r}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(
                f"dtype must be one of {', '.join(filter(None, DTYPES))}, got {self.dtype!r}."
            )
        # Wrong values are refused before the model is loaded.
        self.config()
        parse_sampler(self.sampler)
        parse_cache(self.cache)
        parse_blocks(self.blocks)
        check_verifier(self.verifier)

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> "LmOptions":
        """Takes options by name; those that are None keep their defaults.

        Raises:
            ValueError: If a name is unknown, or a number is none.
        """
        own = {f.name for f in fields(LmOptions) if f.name != "decoding"}
        known = sorted(own | OPTIONS.keys())
        unknown = sorted(arguments.keys() - set(known))
        if unknown:
            raise ValueError(
                f"The model's arguments must be among {', '.join(known)}, got {unknown[0]!r}. An "
                "expression with a comma in it needs model_args to be a dictionary."
            )
        given = {name: _read(name, value) for name, value in arguments.items() if value is not None}
        return LmOptions(
            **{name: value for name, value in given.items() if name in own},
            decoding={name: value for name, value in given.items() if name in OPTIONS},
        )

    def config(self) -> DecodeConfig:
        """Returns the options of the decode; those that a task decides have their defaults."""
        return DecodeConfig(**{n: v for n, v in self.decoding.items() if v != "task"})

    def from_task(self) -> tuple[str, ...]:
        """Returns the options that a task decides."""
        length = ("gen_length",) if self.decoding.get("gen_length") == "task" else ()
        temperature = () if "temperature" in self.decoding else ("temperature",)
        return length + temperature

    def open(self) -> Opened:
        """Loads the model, and the verifier's target if it has one.

        Raises:
            OSError: As `load_model`.
            ValueError: As `load_model`, or if there is no tokenizer.
        """
        own = load(
            self.pretrained, device=self.device, dtype=self.dtype, revision=self.revision or ""
        )
        settings = LmSettings(
            model=self.pretrained,
            revision=self.revision,
            dtype=own.dtype,
            sampler=parse_sampler(self.sampler),
            cache=parse_cache(self.cache),
            verifier=parse_verifier(self.verifier, own.target),
            blocks=parse_blocks(self.blocks),
            estimator=MonteCarlo(self.mc_num) if self.nll == "mc" else LeftToRight(),
            decoding=self.config(),
            from_task=self.from_task(),
            batch_size=self.batch_size,
        )
        # A tokenizer of transformers has all of it.
        return Opened(own.model, cast(LmTokenizer, own.tokenizer), settings)


_READERS: Mapping[str, Callable[[object], Any]] = {
    **{name: READERS.get(kind, str) for name, kind in OPTIONS.items()},
    "mc_num": positive,
    "batch_size": positive,
}


def _read(name: str, value: Any) -> Any:
    """Reads a number or a truth, which the harness may give as text."""
    if name not in _READERS or (name, value) == ("gen_length", "task"):
        return value
    try:
        return _READERS[name](value)
    except ArgumentTypeError as error:
        raise ValueError(f"{name} {error}.") from None

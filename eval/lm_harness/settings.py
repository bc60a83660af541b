"""The settings of the harness adapter, and how they are read from text."""

from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from dllm_decode import CachePolicy, DecodeConfig, MaskPredictor, Verifier
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.settings.addresses import read_option
from dllm_decode.settings.arguments import MachineOptions, ModelOptions, Plugins
from dllm_decode.settings.files import digest
from dllm_decode.settings.models import load
from dllm_decode.settings.options import OPTIONS
from dllm_decode.settings.plugins import KINDS, build_plugins, check_plugin
from eval.arguments import Harness
from eval.lm_harness.generation import DEFAULT_LENGTH, AnswerLength
from eval.lm_harness.likelihood import Estimator, LeftToRight, MonteCarlo
from eval.runs.prompts import PromptTokenizer
from samplers import Sampler
from samplers.expression import expression_of

# The harness' own keys are hashes.
_STAMP = "settings of dllm_decode"


@runtime_checkable
class LmTokenizer(PromptTokenizer, Protocol):
    """A tokenizer with the names and special tokens that the adapter needs."""

    name_or_path: str
    bos_token_id: int | None
    all_special_ids: list[int]


@dataclass(frozen=True)
class LmSettings:
    """Everything that decides an answer, except the request itself.

    Attributes:
        decoding: The options of the decode besides the plug-ins and the next two.
        gen_length: Answer length in tokens, or "task"; see `Generation.of`.
        temperature: Temperature of all answers; None takes the task's.
        batch_size: Rows of a forward.
    """

    model: str
    revision: str | None
    dtype: str
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    estimator: Estimator
    decoding: DecodeConfig = DecodeConfig()
    gen_length: AnswerLength = DEFAULT_LENGTH
    temperature: float | None = None
    batch_size: int = 16
    blocks: BlockSchedule = Sequential()

    def described(self) -> dict[str, Any]:
        """Returns all settings, ready for JSON."""
        names = [f.name for f in fields(self) if f.name != "decoding"]
        values = asdict(self.decoding) | {name: getattr(self, name) for name in names}
        policies = ("sampler", "cache", "verifier", "blocks", "estimator")
        values |= {name: expression_of(values[name]) for name in policies}
        return values | ({"temperature": "task"} if self.temperature is None else {})

    def fingerprint(self) -> str:
        """Returns a short hash of all settings."""
        return digest(self.described())

    def claim(self, store: MutableMapping[str, Any]) -> None:
        """Marks a store of answers as belonging to these settings.

        Raises ValueError if the store has answers of other settings, or of something else.
        """
        described = self.described()
        if len(store) and store.get(_STAMP) != described:
            stored = store.get(_STAMP) or {}
            differing = [
                f"{name}: {stored.get(name)!r} there, {value!r} here"
                for name, value in described.items()
                if stored.get(name) != value
            ]
            raise ValueError(
                "A response cache must hold answers of one setting, got one of another "
                f"({'; '.join(differing)}). Give another path in use_cache."
            )
        store[_STAMP] = described


_OPTIONS = (DecodeConfig, ModelOptions, MachineOptions, Plugins, Harness)
"""Classes whose fields say how arguments are read, the later before the earlier ones."""


class Opened(NamedTuple):
    """A model that is ready to answer, with its settings."""

    model: MaskPredictor
    tokenizer: LmTokenizer
    settings: LmSettings


DEFAULTS: Mapping[str, Any] = {
    "pretrained": "mini", "revision": None, "device": "cpu", "dtype": None,
    "sampler": "ConfidenceThreshold(0.9)", "cache": "NoCache()", "verifier": "NoVerifier()",
    "blocks": "Sequential()", "nll": "mc", "mc_num": 128, "batch_size": 16,
}  # fmt: skip
"""The harness' `model_args`, besides the options of the decode.

`pretrained`, `revision`, `device` and `dtype` are those of `load`; plug-ins are expressions; `nll`
is "mc" with `mc_num` mask patterns, or "l2r"; `batch_size` is in rows. `gen_length` may be "task".
"""


def read_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `model_args` with their defaults; numbers may be texts.

    Raises ValueError if a name is unknown, or a value is wrong.
    """
    known = sorted(DEFAULTS.keys() | OPTIONS.keys())
    unknown = sorted(arguments.keys() - set(known))
    if unknown:
        raise ValueError(
            f"The model's arguments must be among {', '.join(known)}, got {unknown[0]!r}. An "
            "expression with a comma in it needs model_args to be a dictionary."
        )
    kinds = {f.name: f.type for options in _OPTIONS for f in fields(options)} | {"pretrained": str}
    args = {name: value for name, value in arguments.items() if value is not None}
    read = {name: read_option(name, value, kinds[name]) for name, value in args.items()}
    values = {**DEFAULTS, **read}
    decoding_of(values)
    for part in KINDS:
        check_plugin(values[part], part)
    return values


def decoding_of(arguments: Mapping[str, Any]) -> DecodeConfig:
    """Returns the options of the decode; those that a task decides have their defaults."""
    options = {name: arguments[name] for name in OPTIONS if arguments.get(name, "task") != "task"}
    return DecodeConfig(**options)


def open_model(arguments: Mapping[str, Any]) -> Opened:
    """Loads a model, and the verifier's target if it has one.

    Raises:
        OSError: As `load_model`.
        ValueError: As `read_arguments` and `load_model`, or if there is no tokenizer.
    """
    values = read_arguments(arguments)
    source, revision = values["pretrained"], values["revision"]
    loaded = load(source, device=values["device"], dtype=values["dtype"], revision=revision or "")
    settings = LmSettings(
        model=source,
        revision=revision,
        dtype=loaded.dtype,
        estimator=MonteCarlo(values["mc_num"]) if values["nll"] == "mc" else LeftToRight(),
        decoding=decoding_of(values),
        gen_length=values.get("gen_length", DEFAULT_LENGTH),
        temperature=values.get("temperature"),
        batch_size=values["batch_size"],
        **build_plugins(values, loaded.target, loaded.tokenizer),
    )
    # A tokenizer of transformers has every part of the protocol.
    return Opened(loaded.model, cast(LmTokenizer, loaded.tokenizer), settings)

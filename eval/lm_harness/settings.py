"""Everything that decides what the harness adapter answers, and how it is read from text."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch

from dllm_decode import CachePolicy, MaskPredictor, Verifier, load_model, load_target
from eval.lm_harness.estimators import Estimator, LeftToRight, MonteCarlo
from eval.lm_harness.generation import DEFAULT_LENGTH, AnswerLength
from eval.runs import settings as runs
from eval.runs.names import parse_cache, parse_verifier
from eval.runs.records import digest
from eval.runs.settings import ALONE, Place
from eval.tasks.base import Turn
from samplers import Sampler, parse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NLL = ("mc", "l2r")

# The harness' own keys are hashes.
_STAMP = "settings of dllm_decode"


@runtime_checkable
class Tokenizer(runs.Tokenizer, Protocol):
    """What the adapter needs of a tokenizer."""

    name_or_path: str
    bos_token_id: int | None
    all_special_ids: list[int]

    def apply_chat_template(
        self,
        conversation: list[Turn],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> str: ...


@dataclass(frozen=True)
class LmSettings:
    """Everything that decides an answer beside the request itself.

    Attributes:
        model: Embedded name, folder or hub id.
        revision: Branch, tag or commit of a hub id.
        dtype: Of the parameters.
        sampler: Which positions to commit.
        cache: Which columns to recompute.
        verifier: How proposals are checked.
        estimator: How likelihoods are computed.
        gen_length: Answer length in tokens, or "task"; see `Generation.of`.
        block_length: Tokens per block.
        temperature: Of all answers; None takes the task's.
        seed: Of noise and mask patterns.
        batch_size: Rows of a forward.
    """

    model: str
    revision: str | None
    dtype: str
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    estimator: Estimator
    gen_length: AnswerLength = DEFAULT_LENGTH
    block_length: int = 32
    temperature: float | None = None
    seed: int = 0
    batch_size: int = 16

    def __post_init__(self) -> None:
        for name in ("block_length", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}.")
        if self.gen_length != "task" and self.gen_length < 1:
            raise ValueError(f"gen_length is 'task' or at least 1 token, got {self.gen_length}.")

    def described(self) -> dict[str, Any]:
        """Returns all of it, ready for JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        policies = ("sampler", "cache", "verifier", "estimator")
        return own | {name: repr(own[name]) for name in policies}

    def fingerprint(self) -> str:
        """Returns a short hash of all of it."""
        return digest(self.described())

    def claim(self, store: MutableMapping[str, Any]) -> None:
        """Makes a store of answers that of these settings.

        Raises:
            ValueError: If it holds answers of other settings, or of something else.
        """
        own = self.described()
        if len(store) and store.get(_STAMP) != own:
            held = store.get(_STAMP) or {}
            differing = [name for name in own if held.get(name) != own[name]]
            raise ValueError(
                "A response cache holds answers of one setting, got one of another ("
                + "; ".join(f"{n}: {held.get(n)!r} there, {own[n]!r} here" for n in differing)
                + "). Give another path in use_cache."
            )
        store[_STAMP] = own


class Opened(NamedTuple):
    """A model that is ready to answer, with its settings."""

    model: MaskPredictor
    tokenizer: Tokenizer
    settings: LmSettings


@dataclass(frozen=True)
class Options:
    """The settings as text and numbers, as the harness' `model_args` give them.

    Attributes:
        pretrained: Embedded name, folder or hub id of the model.
        revision: Branch, tag or commit of a hub id.
        device: Such as "cpu"; "cuda" is each process's own.
        dtype: Of the parameters; None keeps the checkpoint's.
        sampler: Expression.
        cache: Expression.
        verifier: Expression.
        nll: "mc" or "l2r", see `MonteCarlo` and `LeftToRight`.
        mc_num: Mask patterns an answer, for "mc".
        gen_length: As in `LmSettings`.
        block_length: As in `LmSettings`.
        temperature: As in `LmSettings`.
        seed: As in `LmSettings`.
        batch_size: As in `LmSettings`.
    """

    pretrained: str = "mini"
    revision: str | None = None
    device: str = "cpu"
    dtype: str | None = None
    sampler: str = "ConfidenceThreshold(0.9)"
    cache: str = "NoCache()"
    verifier: str = "NoVerifier()"
    nll: str = "mc"
    mc_num: int = 128
    gen_length: int | str = DEFAULT_LENGTH
    block_length: int = 32
    temperature: float | None = None
    seed: int = 0
    batch_size: int = 16

    def __post_init__(self) -> None:
        if self.nll not in NLL:
            raise ValueError(f"nll is one of {', '.join(NLL)}, got {self.nll!r}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {self.dtype!r}.")

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> "Options":
        """Takes options by name; those that are None keep their defaults.

        Raises:
            ValueError: If a name is unknown, or a number is none.
        """
        known = {field.name for field in fields(Options)}
        unknown = sorted(arguments.keys() - known)
        if unknown:
            raise ValueError(
                f"The model's arguments are {', '.join(sorted(known))}, got {unknown[0]!r}. "
                "An expression with a comma in it needs model_args to be a dictionary."
            )
        given = {name: value for name, value in arguments.items() if value is not None}
        numbers = ("mc_num", "block_length", "seed", "batch_size")
        given |= {name: _whole(name, given[name]) for name in numbers if name in given}
        if given.get("gen_length", "task") != "task":
            given["gen_length"] = _whole("gen_length", given["gen_length"])
        if "temperature" in given:
            given["temperature"] = _number("temperature", given["temperature"])
        return Options(**given)

    def open(self, place: Place = ALONE) -> Opened:
        """Loads the model, and the verifier's target if it has one.

        Raises:
            OSError: As `load_model`.
            ValueError: As `load_model`, or if an expression is none or there is no tokenizer.
        """
        # The expressions first: they are checked in no time.
        sampler, cache = parse(self.sampler), parse_cache(self.cache)
        device = f"cuda:{place.local_rank}" if self.device == "cuda" else self.device
        model, tokenizer = load_model(
            self.pretrained,
            device=device,
            dtype=DTYPES[self.dtype] if self.dtype else None,
            revision=self.revision,
        )
        if tokenizer is None:
            raise ValueError(f"Text needs a tokenizer, got none in {self.pretrained}; add it.")
        target = partial(load_target, tokenizer=tokenizer, device=device)
        settings = LmSettings(
            model=self.pretrained,
            revision=self.revision,
            dtype=str(model.dtype).removeprefix("torch."),
            sampler=sampler,
            cache=cache,
            verifier=parse_verifier(self.verifier, lambda source: target(source)),
            estimator=MonteCarlo(self.mc_num) if self.nll == "mc" else LeftToRight(),
            gen_length=cast(AnswerLength, self.gen_length),
            block_length=self.block_length,
            temperature=self.temperature,
            seed=self.seed,
            batch_size=self.batch_size,
        )
        # Its own types are wider than what is used here.
        return Opened(model, cast(Tokenizer, tokenizer), settings)


def _whole(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"{name} is a whole number, got {value!r}.") from None


def _number(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"{name} is a number, got {value!r}.") from None

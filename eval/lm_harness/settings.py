"""The settings of the harness adapter."""

import argparse
from dataclasses import asdict, dataclass, fields
from typing import Any

from dllm_decode import CachePolicy, DecodeConfig, Verifier
from dllm_decode.blocks import BlockSchedule
from dllm_decode.engine.default_sampler import default_sampler
from dllm_decode.settings.files import digest
from dllm_decode.settings.models import Loaded
from dllm_decode.settings.options import given_options
from dllm_decode.settings.plugins import build_plugins
from eval.lm_harness.generation import DEFAULT_LENGTH
from eval.lm_harness.likelihood import Estimator, LeftToRight, MonteCarlo
from samplers import Sampler
from samplers.expression import expression_of


@dataclass(frozen=True, kw_only=True)
class LmSettings:
    """Everything that decides an answer, except the request itself.

    Attributes:
        config: The options of the decode besides the plug-ins and the next two.
        gen_length: Answer length in tokens; see `Generation.of`.
        temperature: Temperature of all answers; None takes the task's.
        batch_size: Rows of a forward.
    """

    model: str
    revision: str | None
    dtype: str
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    blocks: BlockSchedule
    estimator: Estimator
    config: DecodeConfig
    gen_length: int = DEFAULT_LENGTH
    temperature: float | None = None
    batch_size: int = 16

    def described(self) -> dict[str, Any]:
        """Returns all settings, ready for JSON."""
        names = [f.name for f in fields(self) if f.name != "config"]
        values = asdict(self.config) | {name: getattr(self, name) for name in names}
        policies = ("sampler", "cache", "verifier", "blocks", "estimator")
        values |= {name: expression_of(values[name]) for name in policies}
        return values | ({"temperature": "task"} if self.temperature is None else {})

    def fingerprint(self) -> str:
        """Returns a short hash of all settings."""
        return digest(self.described())


def settings_of(options: argparse.Namespace, loaded: Loaded) -> LmSettings:
    """Returns the settings that the options of `lm` name; ValueError if one cannot be read."""
    parts = vars(options) | {"sampler": options.sampler or repr(default_sampler(loaded.model))}
    return LmSettings(
        model=options.model,
        revision=options.revision or None,
        dtype=loaded.dtype,
        estimator=LeftToRight() if options.nll == "l2r" else MonteCarlo(options.mc_num),
        config=DecodeConfig(**given_options(options)),
        gen_length=options.gen_length or DEFAULT_LENGTH,
        temperature=options.temperature,
        batch_size=options.batch_size,
        **build_plugins(parts, loaded.target, loaded.tokenizer),
    )

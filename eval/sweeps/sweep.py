"""Sweeps: products of models, tasks, plug-ins and options, which `run` and `sweep` decode."""

import argparse
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from dllm_decode import DecodeConfig
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.settings.constraints import constraint_json
from dllm_decode.settings.files import canonical_json, has_type, parse_json
from dllm_decode.settings.models import Loaded
from dllm_decode.settings.options import OPTIONS, axes_of
from dllm_decode.settings.plugins import KINDS, canonical_plugin
from dllm_decode.text.constraints import constraint_of
from eval.runs.named_files import toml_of
from eval.runs.settings import Run, RunParts, run_of
from eval.runs.task_addresses import Selection, expand_patterns, parse_task
from samplers.checks import shown

DEFAULT_SAMPLERS = ("FixedSchedule()", "ConfidenceThreshold(0.9)")

Axes: TypeAlias = Mapping[str, tuple[Any, ...]]
"""By field of `DecodeConfig` its values, each of which is run."""


@dataclass(frozen=True)
class Sweep:
    """Settings of which every combination is run; the first one of each task is the reference.

    Attributes:
        models: Embedded names, folders or hub ids.
        tasks: Addresses; plug-ins are expressions.
        axes: Values of any options of the decode: answer length, temperature, seeds and so on.
            An option that is not named is the task's own, else the default.
        prompts: "chat" or "plain"; empty: the task's default.
        constraints: Texts that answers must be among, as JSON; empty: any text.
    """

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    samplers: tuple[str, ...]
    caches: tuple[str, ...] = ("NoCache()",)
    verifiers: tuple[str, ...] = ("NoVerifier()",)
    blocks: tuple[str, ...] = ("Sequential()",)
    axes: Axes = field(default_factory=dict)
    batch_size: int = 16
    prompts: str = ""
    revision: str = ""
    constraints: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        plugins = zip(("samplers", "caches", "verifiers", "blocks"), KINDS, strict=True)
        parsers: dict[str, Callable[[str], str]] = {
            "models": str, "tasks": lambda address: parse_task(address).address,
            "constraints": canonical_constraint,
            **{name: partial(canonical_plugin, part=part) for name, part in plugins},
        }  # fmt: skip
        for name, parse in parsers.items():
            written = getattr(self, name)
            _require_distinct(name, written, [parse(text) for text in written])
        for name, values in self.axes.items():
            _require_distinct(name, values, values)
        for chosen in self._options():
            DecodeConfig(**chosen)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.prompts not in ("", "chat", "plain"):
            raise ValueError(f"prompts must be 'chat' or 'plain', got {self.prompts!r}.")

    def selections(self) -> list[Selection]:
        """Returns the tasks' examples, read and scorable, before a model is loaded.

        Raises ValueError if files are missing or damaged, a split does not exist or is too small,
        or answers cannot be scored.
        """
        selections = [parse_task(address) for address in self.tasks]
        for selection in selections:
            selection.require_scores(selection.examples())
        return selections

    def runs(
        self, loaded: Mapping[str, Loaded], selections: Sequence[Selection], *, trace: bool
    ) -> Iterator[Run]:
        """Yields the runs, by model and task; only the first sampler's if the verifier asks none.

        `loaded` has the models by name; with `trace` step and confidence are recorded.
        """
        for source, selection, cache, verifier, blocks, options, constraint, sampler in product(
            self.models, selections, self.caches, self.verifiers, self.blocks, self._options(),
            self.constraints, self.samplers,
        ):  # fmt: skip
            run = run_of(
                loaded[source], selection, RunParts(sampler, cache, verifier, blocks), options
            )
            if not run.verifier.asks_sampler and sampler != self.samplers[0]:
                warn_user(f"{sampler} is left out: {verifier} never asks it.")
            else:
                prompts = self.prompts or None
                yield replace(
                    run, batch_size=self.batch_size, prompts=prompts, trace=trace,
                    constraint=canonical_constraint(constraint),
                )  # fmt: skip

    def _options(self) -> list[dict[str, Any]]:
        """Returns every combination of the options."""
        names = sorted(self.axes, key=lambda name: (name == "seed", name))
        return [
            dict(zip(names, values, strict=True))
            for values in product(*(self.axes[name] for name in names))
        ]


def sweep_of_options(options: argparse.Namespace) -> Sweep:
    """Returns the settings that the options of `run` name."""
    written = constraint_json(options)
    return Sweep(
        models=(options.model,),
        tasks=expand_patterns([options.task]),
        samplers=tuple(options.sampler or DEFAULT_SAMPLERS),
        caches=tuple(options.cache or ("NoCache()",)),
        verifiers=tuple(options.verifier or ("NoVerifier()",)),
        blocks=tuple(options.blocks or ("Sequential()",)),
        axes=axes_of(options),
        batch_size=options.batch_size,
        prompts=options.prompts or "",
        revision=options.revision,
        constraints=("" if written is None else canonical_json(written),),
    )


def sweep_of_file(options: argparse.Namespace) -> Sweep:
    """Returns the settings that a file names; options that are given replace the file's."""
    sweep = read_sweep(options.config)
    sweep = replace(sweep, axes={**sweep.axes, **axes_of(options)})
    return replace(sweep, models=tuple(options.model or sweep.models))


def canonical_constraint(text: str) -> str:
    """Returns a constraint as records have it; raises ValueError if the text is no constraint."""
    if not text:
        return ""
    value = parse_json(
        text.encode(), dict[str, Any], f"The constraint {shown(text)}", "write another"
    )
    constraint_of(value)
    return canonical_json(value)


def read_sweep(path: str | Path) -> Sweep:
    """Reads a sweep file, or raises ValueError if the file is missing or is not such a sweep."""
    entries = toml_of(path)
    kinds = {f.name: f.type for f in fields(Sweep) if f.name not in ("models", "axes")}
    values: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    for name, value in entries.items():
        if name == "model":
            values["models"] = _option_values(path, name, value, str)
        elif name in OPTIONS:
            axes[name] = _option_values(path, name, value, OPTIONS[name])
        elif name in kinds:
            values[name] = _field_value(path, name, value, kinds[name])
        else:
            raise ValueError(_unknown(path, name, ["model", *kinds, *OPTIONS]))
    for name in ("model", "tasks", "samplers"):
        if name not in entries:
            raise ValueError(f"{path} lacks {name!r}; a sweep names model, tasks and samplers.")
    try:
        values["tasks"] = expand_patterns(values["tasks"])
        return Sweep(axes=axes, **values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _field_value(path: str | Path, name: str, value: Any, kind: Any) -> Any:
    if not has_type(value, kind):
        shape = "a list of texts" if kind == tuple[str, ...] else f"of type {kind.__name__}"
        raise ValueError(f"{name} in {path} must be {shape}, got {shown(value)}.")
    return tuple(value) if isinstance(value, list) else value


def _option_values(path: str | Path, name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """Reads one value of an option, or a list of them."""
    values = [value] if has_type(value, kind) or not isinstance(value, list) else value
    if not values or not all(has_type(item, kind) for item in values):
        kind_name = kind.__name__ if isinstance(kind, type) else str(kind)
        raise ValueError(
            f"{name} in {path} must be a value of type {kind_name} or a list of them, "
            f"got {shown(value)}."
        )
    return tuple(tuple(item) if isinstance(item, list) else item for item in values)


def _unknown(path: str | Path, name: str, allowed: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it may hold {', '.join(allowed)}."
    return f"{path} has an entry {name!r} that no sweep has; {hint}"


def _require_distinct(name: str, written: Sequence[Any], meant: Sequence[Any]) -> None:
    if not written:
        raise ValueError(f"{name} must have at least one entry, got none.")
    for index, value in enumerate(meant):
        if value in meant[:index]:
            raise ValueError(
                f"{name} must be distinct, got {shown(written[index])} twice: "
                "it would count as two."
            )

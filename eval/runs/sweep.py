"""Sweeps: a product of models, tasks, plug-ins and options, as a small TOML file names it."""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from dllm_decode import DecodeConfig
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.cli.files import is_of
from dllm_decode.cli.models import Loaded
from dllm_decode.cli.options import OPTIONS
from dllm_decode.cli.plugins import CHECKS, built
from eval.runs.names import Selection, parse_task
from eval.runs.settings import Run
from eval.sandbox.code_runner import NO_CODE, CodeRunner
from samplers.checks import shown
from samplers.expression import expression_of

Axes: TypeAlias = Mapping[str, tuple[Any, ...]]
"""By field of `DecodeConfig` its values, each of which is run."""


@dataclass(frozen=True)
class Parts:
    """The parts of a setting, as expressions; an empty `model` is the command's."""

    sampler: str
    cache: str = "NoCache()"
    verifier: str = "NoVerifier()"
    blocks: str = "Sequential()"
    model: str = ""


@dataclass(frozen=True)
class Sweep:
    """Settings whose every combination is run; of each task the first is the reference.

    Attributes:
        models: Embedded names, folders or hub ids.
        tasks: Addresses; plug-ins are expressions.
        decoding: Values of any options of the decode: answer length, temperature, seeds and so on.
            An option that is not named is the task's own, else the default.
        prompts: "chat" or "plain"; empty: the task's default.
    """

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    samplers: tuple[str, ...]
    caches: tuple[str, ...] = ("NoCache()",)
    verifiers: tuple[str, ...] = ("NoVerifier()",)
    blocks: tuple[str, ...] = ("Sequential()",)
    decoding: Axes = field(default_factory=dict)
    batch_size: int = 16
    prompts: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        axes = ("samplers", "caches", "verifiers", "blocks")
        parsers: dict[str, Callable[[str], object]] = {
            "models": str, "tasks": lambda address: parse_task(address).address,
            **dict(zip(axes, CHECKS.values(), strict=True)),
        }  # fmt: skip
        for name, parse in parsers.items():
            written = getattr(self, name)
            _require_distinct(name, written, [expression_of(parse(text)) for text in written])
        for name, values in self.decoding.items():
            _require_distinct(name, values, values)
        for chosen in self._options():
            DecodeConfig(**chosen)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.prompts not in ("", "chat", "plain"):
            raise ValueError(f"prompts must be 'chat' or 'plain', got {self.prompts!r}.")

    def selections(self, code: CodeRunner = NO_CODE) -> list[Selection]:
        """Returns the tasks' examples, read and scorable, before a model is loaded.

        Raises ValueError if files are missing or damaged, a split does not exist or is too small,
        or answers cannot be scored.
        """
        found = [parse_task(address, code) for address in self.tasks]
        for selection in found:
            selection.require_scores(selection.examples())
        return found

    def runs(
        self, loaded: Mapping[str, Loaded], selections: Sequence[Selection], *, trace: bool
    ) -> Iterator[Run]:
        """Yields the runs, task by task; one for all samplers where the verifier asks none.

        `loaded` has the models by name; with `trace` step and confidence are recorded.
        """
        for source, selection, cache, verifier, blocks, options, sampler in product(
            self.models, selections, self.caches, self.verifiers, self.blocks, self._options(),
            self.samplers,
        ):  # fmt: skip
            run = run_of(
                loaded[source], selection, Parts(sampler, cache, verifier, blocks), options
            )
            if run.verifier.asks_sampler or sampler == self.samplers[0]:
                prompts = self.prompts or None
                yield replace(run, batch_size=self.batch_size, prompts=prompts, trace=trace)

    def _options(self) -> list[dict[str, Any]]:
        """Returns every combination of the options."""
        names = sorted(self.decoding, key=lambda name: (name == "seed", name))
        return [
            dict(zip(names, values, strict=True))
            for values in product(*(self.decoding[name] for name in names))
        ]


def run_of(loaded: Loaded, selection: Selection, parts: Parts, options: Mapping[str, Any]) -> Run:
    """Returns the run of a setting on some examples, with the given options of the decode.

    Raises ValueError if a part or an option is none.
    """
    plugins = built(vars(parts), loaded.target)
    return Run(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        selection=selection,
        decoding=decoding_of(selection, options, plugins["blocks"]),
        model_source=loaded.source or None,
        revision=loaded.revision or None,
        dtype=loaded.dtype,
        files=loaded.files,
        **plugins,
    )


def decoding_of(
    selection: Selection, options: Mapping[str, Any], blocks: BlockSchedule = Sequential()
) -> DecodeConfig:
    """Returns the options of a decode: those given, else the task's own, else the defaults.

    A block schedule with a block length of its own takes the place of the task's block length.
    Raises ValueError if an option is out of its range.
    """
    task = selection.task
    given = {"gen_length": task.gen_length, **options}
    if task.block_length is not None and blocks.block_length is None:
        # A published block length may be more than the answer length that was asked for.
        own = min(task.block_length, given["gen_length"])
        given = {"block_length": own, **given}
    return DecodeConfig(**given)


def read_sweep(path: str | Path) -> Sweep:
    """Reads a sweep file, or raises ValueError if the file is missing or is not such a sweep."""
    written = _toml_of(path)
    known = {f.name: f.type for f in fields(Sweep) if f.name not in ("models", "decoding")}
    own: dict[str, Any] = {}
    decoding: dict[str, tuple[Any, ...]] = {}
    for name, value in written.items():
        if name == "model":
            own["models"] = _values(path, name, value, str)
        elif name in OPTIONS:
            decoding[name] = _values(path, name, value, OPTIONS[name])
        elif name in known:
            own[name] = _own(path, name, value, known[name])
        else:
            raise ValueError(_unknown(path, name, ["model", *known, *OPTIONS]))
    for name in ("model", "tasks", "samplers"):
        if name not in written:
            raise ValueError(f"{path} lacks {name!r}; a sweep names model, tasks and samplers.")
    try:
        return Sweep(decoding=decoding, **own)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _toml_of(path: str | Path) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"A sweep must be a TOML file, got {path}, which does not exist.")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} must not be nested deeper than Python reads.") from None
    except ValueError as error:
        raise ValueError(f"{path} must be valid TOML: {error}.") from None


def _own(path: str | Path, name: str, value: Any, kind: Any) -> Any:
    if not is_of(value, kind):
        shape = "a list of texts" if kind == tuple[str, ...] else f"of type {kind.__name__}"
        raise ValueError(f"{name} in {path} must be {shape}, got {shown(value)}.")
    return tuple(value) if isinstance(value, list) else value


def _values(path: str | Path, name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """Reads one value of an option, or a list of them."""
    values = [value] if is_of(value, kind) or not isinstance(value, list) else value
    if not values or not all(is_of(one, kind) for one in values):
        named = kind.__name__ if isinstance(kind, type) else str(kind)
        raise ValueError(
            f"{name} in {path} must be a value of type {named} or a list of them, "
            f"got {shown(value)}."
        )
    return tuple(tuple(one) if isinstance(one, list) else one for one in values)


def _unknown(path: str | Path, name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it may hold {', '.join(known)}."
    return f"{path} has an entry {name!r} that no sweep has; {hint}"


def _require_distinct(name: str, written: Sequence[Any], meant: Sequence[Any]) -> None:
    if not written:
        raise ValueError(f"{name} must have at least one entry, got none.")
    for index, one in enumerate(meant):
        if one in meant[:index]:
            raise ValueError(
                f"{name} must be distinct, got {shown(written[index])} twice: "
                "it would count as two."
            )

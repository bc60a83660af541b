"""Sweeps: a product of tasks, samplers, caches and verifiers, written in a small TOML file."""

import difflib
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from dllm_decode import CausalTarget, MaskPredictor
from eval.runs.names import no_target, parse_cache, parse_task, parse_verifier
from eval.runs.settings import Run, Tokenizer
from eval.sandbox.code_runner import NO_CODE, CodeRunner
from samplers import parse


@dataclass(frozen=True)
class Sweep:
    """What a sweep file holds. Every combination is run; of each task the first is the reference.

    Attributes:
        model: Embedded name, folder or hub id.
        tasks: Addresses.
        samplers: Expressions.
        caches: Expressions.
        verifiers: Expressions.
        seeds: Of the noise.
        gen_length: Answer length in tokens; 0 is the task's own.
        block_length: Tokens per block; 0 is the task's own.
        temperature: Of the proposals.
        batch_size: Rows decoded together.
        prompts: "chat" or "plain"; empty is the task's habit.
        revision: Branch, tag or commit of a hub id.
    """

    model: str
    tasks: tuple[str, ...]
    samplers: tuple[str, ...]
    caches: tuple[str, ...] = ("NoCache()",)
    verifiers: tuple[str, ...] = ("NoVerifier()",)
    seeds: tuple[int, ...] = (0,)
    gen_length: int = 0
    block_length: int = 0
    temperature: float = 0.0
    batch_size: int = 16
    prompts: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        for name in ("tasks", "samplers", "caches", "verifiers", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} has at least one entry, got none.")
        for address in self.tasks:
            parse_task(address)
        for sampler in self.samplers:
            parse(sampler)
        for cache in self.caches:
            parse_cache(cache)
        for verifier in self.verifiers:
            # A target is loaded once, later, beside the model.
            if "CausalTarget(" not in verifier:
                parse_verifier(verifier)

    def runs(
        self,
        model: MaskPredictor,
        tokenizer: Tokenizer,
        *,
        dtype: str,
        trace: bool,
        target: Callable[[str], CausalTarget] = no_target,
        code: CodeRunner = NO_CODE,
    ) -> Iterator[Run]:
        """Yields the runs, task by task; one for all samplers where the verifier asks none.

        Args:
            model: What `load_model(self.model)` returned.
            tokenizer: Likewise.
            dtype: Of the model's parameters.
            trace: Record step and confidence of every position.
            target: Loads a verifier's causal model.
            code: Runs the programs of tasks that are scored by running them.
        """
        for address, cache, verifier, seed, sampler in product(
            self.tasks, self.caches, self.verifiers, self.seeds, self.samplers
        ):
            parsed = parse_verifier(verifier, target)
            if not parsed.asks_sampler and sampler != self.samplers[0]:
                continue
            yield Run(
                model=model,
                tokenizer=tokenizer,
                selection=parse_task(address, code),
                sampler=parse(sampler),
                cache=parse_cache(cache),
                verifier=parsed,
                gen_length=self.gen_length or None,
                block_length=self.block_length or None,
                temperature=self.temperature,
                seed=seed,
                batch_size=self.batch_size,
                prompts=self.prompts or None,
                model_source=self.model,
                revision=self.revision or None,
                dtype=dtype,
                trace=trace,
            )


def read_sweep(path: str | Path) -> Sweep:
    """Reads a sweep file.

    Raises:
        ValueError: If the file is missing or is not such a sweep.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"A sweep is a TOML file, got {path}, which does not exist.")
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None
    known = {field.name: field for field in fields(Sweep)}
    for name, value in written.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it may hold {', '.join(known)}."
            raise ValueError(f"{path} has an entry {name!r} that no sweep has; {hint}")
        _require_type(path, name, value, known[name].type)
    for name in ("model", "tasks", "samplers"):
        if name not in written:
            raise ValueError(f"{path} lacks {name!r}; a sweep names model, tasks and samplers.")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in written.items()
    }
    return Sweep(**values)


def _require_type(path: str | Path, name: str, value: object, wanted: object) -> None:
    items = value if isinstance(value, list) else [value]
    kinds: dict[object, tuple[Any, bool]] = {
        str: (str, False), int: (int, False), float: ((int, float), False),
        tuple[str, ...]: (str, True), tuple[int, ...]: (int, True),
    }  # fmt: skip
    kind, is_list = kinds[wanted]
    right = isinstance(value, list) == is_list and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in items
    )
    if not right:
        shape = "a list" if is_list else "a value"
        raise ValueError(f"{name} in {path} is {shape} of type {wanted}, got {value!r}.")

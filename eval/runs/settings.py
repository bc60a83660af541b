"""Settings: a `Run`, which can be decoded, and its `RunSettings`, which are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from dllm_decode import CachePolicy, DecodeConfig, MaskPredictor, NoCache, NoVerifier, Verifier
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.core.automaton import Automaton
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.settings.files import canonical_json, checked_value, digest_of_text
from dllm_decode.settings.models import Loaded
from dllm_decode.settings.options import OPTIONS
from dllm_decode.settings.plugins import build_plugins
from dllm_decode.text.constraints import constraint_of
from dllm_decode.text.text_requests import automaton_of
from eval.runs.prompts import PromptTokenizer, require_template, templates_of
from eval.runs.task_addresses import Selection, digest_of_examples
from eval.tasks import Example
from samplers import Sampler
from samplers.expression import expression_of

NEW_FOLDER = "run anew into another folder"
_NOTHING = ("", "NoCache()", "NoVerifier()", repr(Sequential()))


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides an answer, except for the machine: one row of a table.

    Plug-ins are expressions, as `samplers.expression.expression_of` writes them.

    Attributes:
        dtype: Data type of the parameters.
        task: Canonical address.
        examples: Digest of the examples' ids, prompts and targets.
        sampler: Empty if the verifier asks no sampler.
        config: All other options of the decode, with the block length that was used.
        batch_size: Rows decoded together: which rows share a batch changes floating-point rounding.
        prompts: "chat" or "plain".
        constraint: Texts that answers must be among, as JSON; empty: any text.
    """

    model: str
    revision: str | None
    dtype: str
    task: str
    task_version: int
    examples: str
    num_examples: int
    sampler: str
    cache: str
    verifier: str
    blocks: str
    config: DecodeConfig
    batch_size: int
    prompts: str
    constraint: str = ""

    @property
    def parts(self) -> list[str]:
        """Sampler, cache, verifier and block schedule, without those that change nothing."""
        return named_parts(self.sampler, self.cache, self.verifier, self.blocks)

    def key(self, example_id: str) -> str:
        """Returns the key of an example's record under these settings."""
        return digest_of_text(f'{{"example":{canonical_json(example_id)},"settings":{self._text}}}')

    @cached_property
    def _text(self) -> str:
        return canonical_json(self.written())

    def with_seed(self, seed: int) -> "RunSettings":
        """Returns the same settings with another seed."""
        return replace(self, config=replace(self.config, seed=seed))

    def written(self) -> dict[str, Any]:
        """Returns the settings for JSON, the options of the decode among the others."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "config"}
        options = asdict(self.config)
        # JSON has no tuples; with lists, the settings that are read equal those that were written.
        return values | {n: list(v) if isinstance(v, tuple) else v for n, v in options.items()}

    @staticmethod
    def of(written: Mapping[str, Any], where: str = "Settings") -> "RunSettings":
        """Reads the settings that `written` returned.

        Raises ValueError if a field is missing, unknown, of the wrong type or out of its range.
        """
        values = msgspec.structs.asdict(checked_value(written, _WrittenSettings, where, NEW_FOLDER))
        try:
            config = DecodeConfig(**{name: values.pop(name) for name in OPTIONS})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return RunSettings(config=config, **values)


_WrittenSettings = msgspec.defstruct(
    "_WrittenSettings",
    [*((f.name, f.type) for f in fields(RunSettings) if f.name != "config"), *OPTIONS.items()],
    forbid_unknown_fields=True,
)


def named_parts(*parts: str) -> list[str]:
    """Returns the expressions that name a setting, without those that change nothing."""
    return [text for text in parts if text not in _NOTHING]


@dataclass(frozen=True)
class Run:
    """One setting: a model, some examples, a sampler, and the other plug-ins and options.

    Attributes:
        config: All other options of the decode.
        sampler: A marker that it was not given is the task's, see `PlugIn.with_tokenizer`.
        prompts: "chat" or "plain"; None: the task's default.
        model_source: Argument of `load_model`, like `revision`; None is the model's name.
        dtype: Data type of the parameters.
        files: The model's files, as `MaskedTransformer.files`; () if they are not known.
        constraint: Texts that answers must be among, as canonical JSON that `constraint_of` reads;
            empty: any text.
        trace: Record step and confidence of every position. Costs a little time each step.
    """

    model: MaskPredictor
    tokenizer: PromptTokenizer
    selection: Selection
    sampler: Sampler
    cache: CachePolicy = field(default_factory=NoCache)
    verifier: Verifier = field(default_factory=NoVerifier)
    blocks: BlockSchedule = field(default_factory=Sequential)
    config: DecodeConfig = field(default_factory=DecodeConfig)
    batch_size: int = 16
    prompts: str | None = None
    model_source: str | None = None
    revision: str | None = None
    dtype: str = "float32"
    files: tuple[Path, ...] = ()
    constraint: str = ""
    trace: bool = True

    def __post_init__(self) -> None:
        sampler = self.sampler.with_tokenizer(self.tokenizer, self.selection.task.marker)
        object.__setattr__(self, "sampler", sampler)

    @property
    def marker(self) -> tuple[int, ...]:
        """Token ids of the task's marker; () if the task has none."""
        text = self.selection.task.marker
        return tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()

    @property
    def name(self) -> str:
        """The setting in words, for messages."""
        parts = (self.sampler, self.cache, self.verifier, self.blocks)
        names = named_parts(*map(expression_of, parts))
        within = f" within {self.constraint}" if self.constraint else ""
        return f"{self.model.name} on {self.selection.address} with {' + '.join(names)}{within}"

    def check(self, examples: Sequence[Example]) -> None:
        """Raises ValueError, before anything is decoded, if these settings fail for every prompt.

        Model, sampler, cache, verifier, block schedule and lengths must fit together, answers be
        scorable, and prompts that need a chat template have it.
        """
        self._decoder().request([self.model.eos_ids[0]], 0, constraint=self.automaton())
        if self.cache.needs_kv_cache:
            # A model without keys and values refuses.
            self.model.new_kv_cache(1, 1)
        has_turns = any(not isinstance(example.prompt, str) for example in examples)
        if has_turns or (self.prompts or self.selection.task.prompts) == "chat":
            require_template(self.tokenizer)
        templates_of(self.tokenizer, self.model, examples, self.config.gen_length)

    def automaton(self) -> Automaton | None:
        """Returns the constraint as an automaton over the model's tokens; None without constraint.

        Raises ValueError if the constraint is not valid, or the tokens cannot spell it.
        """
        if not self.constraint:
            return None
        constraint = constraint_of(msgspec.json.decode(self.constraint))
        return automaton_of(self._decoder(), self.tokenizer, constraint)

    def _decoder(self) -> Decoder:
        return new_decoder(
            self.model, self.sampler, cache=self.cache, verifier=self.verifier,
            blocks=self.blocks, config=self.config,
        )  # fmt: skip

    def settings(self, examples: Sequence[Example]) -> RunSettings:
        """Returns the settings that decide the answers to these examples."""
        parts = (self.sampler, self.cache, self.verifier, self.blocks, self.config)
        block_length = Decoder(self.model, *parts).block_length
        return RunSettings(
            model=self.model_source or self.model.name,
            revision=self.revision,
            dtype=self.dtype,
            task=self.selection.address,
            task_version=self.selection.task.version,
            examples=digest_of_examples(examples),
            num_examples=len(examples),
            sampler=expression_of(self.sampler) if self.verifier.asks_sampler else "",
            cache=expression_of(self.cache),
            verifier=expression_of(self.verifier),
            blocks=expression_of(self.blocks),
            config=replace(self.config, block_length=block_length),
            batch_size=self.batch_size,
            prompts=self.prompts or self.selection.task.prompts,
            constraint=self.constraint,
        )


@dataclass(frozen=True)
class RunParts:
    """The parts of a setting, as expressions; an empty `model` is the command's."""

    sampler: str
    cache: str = "NoCache()"
    verifier: str = "NoVerifier()"
    blocks: str = "Sequential()"
    model: str = ""


def run_of(
    loaded: Loaded, selection: Selection, parts: RunParts, options: Mapping[str, Any]
) -> Run:
    """Returns the run of a setting on some examples, with the given options of the decode.

    Raises ValueError if a part or an option is not valid.
    """
    plugins = build_plugins(vars(parts), loaded.target, loaded.tokenizer)
    return Run(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        selection=selection,
        config=config_of(selection, options, plugins["blocks"]),
        model_source=loaded.source or None,
        revision=loaded.revision or None,
        dtype=loaded.dtype,
        files=loaded.files,
        **plugins,
    )


def config_of(
    selection: Selection, options: Mapping[str, Any], blocks: BlockSchedule = Sequential()
) -> DecodeConfig:
    """Returns the options of a decode: those given, else the task's own, else the defaults.

    A block schedule with a block length of its own takes the place of the task's block length.
    Raises ValueError if an option is out of its range.
    """
    task = selection.task
    values = {"gen_length": task.gen_length, **options}
    if task.block_length is not None and blocks.block_length is None:
        # A published block length may be more than the answer length that was asked for.
        block_length = min(task.block_length, values["gen_length"])
        values = {"block_length": block_length, **values}
    return DecodeConfig(**values)

"""A setting that is run, and the place of this process among several."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dllm_decode import CachePolicy, DecodeConfig, MaskPredictor, NoCache, NoVerifier, Verifier
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.cli.models import Place
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.loop import new_decoder
from eval.runs.names import Selection, digest_of
from eval.runs.prompts import PromptTokenizer, require_template
from eval.runs.records import RunSettings, named_parts
from eval.tasks import Example
from samplers import Sampler
from samplers.expression import expression_of

ALONE = Place()


@dataclass(frozen=True)
class Run:
    """One setting: a model on some examples with a sampler and what goes with it.

    Attributes:
        decoding: All other options of the decode.
        prompts: "chat" or "plain"; None: the task's default.
        model_source: As `load_model` was given it, like `revision`; None is the model's name.
        dtype: Of the parameters.
        files: The model's files, as `MaskedTransformer.files`; () if they are not known.
        trace: Record step and confidence of every position. Costs a little time each step.
    """

    model: MaskPredictor
    tokenizer: PromptTokenizer
    selection: Selection
    sampler: Sampler
    cache: CachePolicy = field(default_factory=NoCache)
    verifier: Verifier = field(default_factory=NoVerifier)
    blocks: BlockSchedule = field(default_factory=Sequential)
    decoding: DecodeConfig = field(default_factory=DecodeConfig)
    batch_size: int = 16
    prompts: str | None = None
    model_source: str | None = None
    revision: str | None = None
    dtype: str = "float32"
    files: tuple[Path, ...] = ()
    trace: bool = True

    @property
    def name(self) -> str:
        """The setting in words, for messages."""
        parts = (self.sampler, self.cache, self.verifier, self.blocks)
        shown = named_parts(*map(expression_of, parts))
        return f"{self.model.name} on {self.selection.address} with {' + '.join(shown)}"

    def check(self, examples: Sequence[Example]) -> None:
        """Raises ValueError, before anything is decoded, if these settings fail for every prompt.

        Model, sampler, cache, verifier, block schedule and lengths must fit together, answers be
        scorable, and prompts that need a chat template have it.
        """
        new_decoder(
            self.model, self.sampler, cache=self.cache, verifier=self.verifier,
            blocks=self.blocks, config=self.decoding,
        )  # fmt: skip
        self.selection.task.require_scorable()
        has_turns = any(not isinstance(example.prompt, str) for example in examples)
        if has_turns or (self.prompts or self.selection.task.prompts) == "chat":
            require_template(self.tokenizer)

    def settings(self, examples: Sequence[Example]) -> RunSettings:
        """Returns what decides the answers to these examples."""
        parts = (self.sampler, self.cache, self.verifier, self.blocks, self.decoding)
        block_length = Decoder(self.model, *parts).block_length
        return RunSettings(
            model=self.model_source or self.model.name,
            revision=self.revision,
            dtype=self.dtype,
            task=self.selection.address,
            task_version=self.selection.task.version,
            examples=digest_of(examples),
            num_examples=len(examples),
            sampler=expression_of(self.sampler) if self.verifier.asks_sampler else "",
            cache=expression_of(self.cache),
            verifier=expression_of(self.verifier),
            blocks=expression_of(self.blocks),
            decoding=replace(self.decoding, block_length=block_length),
            batch_size=self.batch_size,
            prompts=self.prompts or self.selection.task.prompts,
        )

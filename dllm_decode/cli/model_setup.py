"""Loads a model and the plug-ins with which it answers questions."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from dllm_decode import (
    CachePolicy,
    DecodeConfig,
    GenerateOutput,
    MaskPredictor,
    Verifier,
    generate,
    new_decoder,
    stream_to_terminal,
)
from dllm_decode.blocks import BlockSchedule
from dllm_decode.core.options import DecodeOptions
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.default_sampler import default_sampler
from dllm_decode.settings.models import open_model
from dllm_decode.settings.options import given_options
from dllm_decode.settings.plugins import KINDS, build_plugins, canonical_plugin
from dllm_decode.text import constraints
from dllm_decode.text.tokenization import ChatMode
from samplers import Sampler

Chat = Sequence[Mapping[str, str]]


class ModelSetup(NamedTuple):
    """A model with its address, dtype and files, and the plug-ins and options of its answers."""

    model: MaskPredictor
    tokenizer: Any
    source: str
    dtype: str
    files: tuple[Path, ...]
    sampler: Sampler[Any]
    cache: CachePolicy
    verifier: Verifier
    blocks: BlockSchedule
    config: DecodeConfig

    def answer(
        self,
        question: str | Chat | None,
        *,
        live: bool,
        chat: ChatMode = "auto",
        template: str = "",
        constraint: "constraints.Constraint | None" = None,
    ) -> GenerateOutput:
        """Answers a text or a chat as `generate` does; None fills `template` without a question.

        With `live` the answer is shown on the terminal while it is decoded.
        """
        stream = stream_to_terminal(self.tokenizer) if live else nullcontext()
        with stream as watch:
            return generate(
                self.model,
                self.tokenizer,
                question,
                self.sampler,
                chat=chat,
                templates=template or (),
                constraint=constraint,
                config=self.config,
                cache=self.cache,
                verifier=self.verifier,
                blocks=self.blocks,
                observers=[] if watch is None else [watch],
            )

    def decoder(self, sampler: Sampler[Any], config: DecodeConfig) -> Decoder:
        """Returns a decoder with the model and its other plug-ins, as `new_decoder` does."""
        return new_decoder(
            self.model, sampler, cache=self.cache, verifier=self.verifier, blocks=self.blocks,
            config=config,
        )  # fmt: skip


def load_setup(options: argparse.Namespace, **given: Unpack[DecodeOptions]) -> ModelSetup:
    """Loads the model of a command line and the plug-ins that answer with it.

    `given` overrides options of the decode. Raises OSError if the model cannot be read, ValueError
    if an option is mistyped or does not fit the others.
    """
    # Mistyped plug-ins are refused before a model is loaded.
    for part in KINDS:
        if vars(options)[part] is not None:
            canonical_plugin(vars(options)[part], part)
    config = DecodeConfig(**{**given_options(options), **given})
    loaded = open_model(options.model, options, options.revision)
    sampler = options.sampler or repr(default_sampler(loaded.model))
    plugins = build_plugins({**vars(options), "sampler": sampler}, loaded.target, loaded.tokenizer)
    return ModelSetup(
        loaded.model, loaded.tokenizer, loaded.source, loaded.dtype, loaded.files, config=config,
        **plugins,
    )  # fmt: skip

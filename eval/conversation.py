"""The command `dllm-decode generate`, and the options that name the model that answers."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
from dllm_decode.decoder import Decoder
from dllm_decode.options import DecodeOptions
from dllm_decode.texts import UseTemplate
from dllm_decode.uniform_state import default_sampler
from eval.runs.command import open_model
from eval.runs.options import given_of
from eval.runs.plugins import CHECKS, built
from samplers import Sampler

Chat = Sequence[Mapping[str, str]]


class Speaker(NamedTuple):
    """A model, and the plug-ins and options that it answers with."""

    model: MaskPredictor
    tokenizer: Any
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
        chat: UseTemplate = "auto",
        template: str = "",
    ) -> GenerateOutput:
        """Answers a text or a chat as `generate` does; None fills `template` without a question.

        With `live` the answer is shown on the terminal while it is decoded.
        """
        shown = stream_to_terminal(self.tokenizer) if live else nullcontext()
        with shown as watch:
            return generate(
                self.model,
                self.tokenizer,
                question,
                self.sampler,
                chat=chat,
                templates=template or (),
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


def generate_once(options: Namespace) -> int:
    """Answers one question, fills one template, or answers a file."""
    _check_generate(options)
    text = read_input(sys.stdin.read) if options.text == "-" else options.text
    if text is not None and not text.strip():
        raise ValueError("The question must not be empty; give a text, or - to read one.")
    chat: UseTemplate = False if options.plain else "auto"
    speaker = load_speaker(options)
    if options.input:
        from eval.prompt_files import answer_file

        done = answer_file(
            speaker, options.input, options.output, num_rows=options.num_rows, chat=chat,
            progress=sys.stderr.isatty(),
        )  # fmt: skip
        sys.stderr.write(f"{done}\n")
        return 0
    out = speaker.answer(text, live=options.live, chat=chat, template=options.template)
    if not options.live:
        sys.stdout.write(f"{out.texts[0]}\n")
    sys.stderr.write(f"{out.cost}\n")
    return 0


def _check_generate(options: Namespace) -> None:
    """Raises ValueError if the options of `generate` contradict each other."""
    if bool(options.input) != bool(options.output):
        raise ValueError(
            "--input and --output must be given together: a prompt and an answer a line."
        )
    if options.input and (options.text is not None or options.template or options.live):
        raise ValueError("--input must be given without a text, --template and --live.")
    if not options.input and options.text is None and not options.template:
        raise ValueError("A question must be given, or --template, or --input with --output.")
    if options.template and options.gen_length is not None:
        raise ValueError(
            "--gen-length must be left out with --template, whose answer is as long as it is."
        )


def read_once(options: Namespace) -> int:
    """Writes how probable each allowed answer is at each choice of a text."""
    from dllm_decode import read

    loaded = open_model(options.model, options, options.revision)
    # Its own type is wider than `Loaded` says.
    tokenizer: Any = loaded.tokenizer
    for choice in read(loaded.model, tokenizer, options.text, options.question):
        width = max(len(answer.text) for answer in choice.answers)
        sys.stdout.write(f"{choice.best}\n")
        for answer in choice.answers:
            sys.stdout.write(
                f"  {answer.text:{width}}  probability {answer.probability:<8.3g}  "
                f"share {answer.share:.3g}\n"
            )
    return 0


def load_speaker(options: Namespace, **given: Unpack[DecodeOptions]) -> Speaker:
    """Loads the model of a command line and the plug-ins that answer with it.

    `given` takes the place of options of the decode. Raises OSError if the model cannot be read,
    ValueError if something is mistyped or does not fit.
    """
    # Mistyped plug-ins are refused before a model is loaded.
    for name, check in CHECKS.items():
        if vars(options)[name] is not None:
            check(vars(options)[name])
    config = DecodeConfig(**{**given_of(options), **given})
    loaded = open_model(options.model, options, options.revision)
    sampler = options.sampler or repr(default_sampler(loaded.model))
    plugins = built({**vars(options), "sampler": sampler}, loaded.target)
    return Speaker(loaded.model, loaded.tokenizer, config=config, **plugins)


def read_input(read: Callable[[], str]) -> str:
    """Reads text from standard input; raises ValueError if it is not in UTF-8."""
    try:
        text = read()
        # Some locales read other bytes as halves of surrogate pairs.
        text.encode()
    except UnicodeError as error:
        raise ValueError(f"Standard input must be text in UTF-8, got {error}.") from None
    return text

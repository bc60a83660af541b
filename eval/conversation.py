"""The command `dllm-decode generate`, and the options that name the model that answers."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from dllm_decode import (
    CachePolicy,
    DecodeConfig,
    GenerateOutput,
    MaskPredictor,
    Verifier,
    generate,
    load_target,
    stream_to_terminal,
)
from dllm_decode.blocks import BlockSchedule
from dllm_decode.texts import UseTemplate
from eval.runs.command import DTYPES
from eval.runs.models import open_address
from eval.runs.options import given_of
from eval.runs.plugins import (
    check_verifier,
    parse_blocks,
    parse_cache,
    parse_sampler,
    parse_verifier,
)
from samplers import Sampler

Chat = Sequence[Mapping[str, str]]


class Speaker(NamedTuple):
    """A model, and how it answers.

    Attributes:
        model: The mask predictor.
        tokenizer: Its tokenizer.
        sampler: Which positions are committed.
        cache: Which columns are recomputed.
        verifier: How a round's forwards are run, and who decides.
        blocks: Which positions are open.
        config: The options of the decode.
    """

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
        """Answers a text or a chat.

        Args:
            question: What is asked; `None`: a template is filled without a question.
            live: Show the answer on the terminal while it is decoded.
            chat: As in `generate`.
            template: The answer with blanks; empty: none.
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
    """Raises ValueError unless the options of `generate` say one thing to do."""
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

    model, tokenizer = load_answerer(options)
    for choice in read(model, tokenizer, options.text, options.question):
        width = max(len(answer.text) for answer in choice.answers)
        sys.stdout.write(f"{choice.best}\n")
        for answer in choice.answers:
            sys.stdout.write(
                f"  {answer.text:{width}}  probability {answer.probability:<8.3g}  "
                f"share {answer.share:.3g}\n"
            )
    return 0


def load_speaker(options: Namespace) -> Speaker:
    """Loads the model of a command line and the plug-ins that answer with it.

    Raises:
        OSError: If the model cannot be read.
        ValueError: If something is mistyped or does not fit.
    """
    # What is mistyped is refused before a model is loaded.
    sampler, cache = parse_sampler(options.sampler), parse_cache(options.cache)
    blocks, config = parse_blocks(options.blocks), DecodeConfig(**given_of(options))
    check_verifier(options.verifier)
    model, tokenizer = load_answerer(options)
    dtype = DTYPES[options.dtype]
    # Not options.device, which may be "auto".
    target = partial(load_target, tokenizer=tokenizer, device=model.device, dtype=dtype)
    verifier = parse_verifier(options.verifier, target)
    return Speaker(model, tokenizer, sampler, cache, verifier, blocks, config)


def load_answerer(options: Namespace) -> tuple[MaskPredictor, Any]:
    """Loads the model of a command line, and its tokenizer.

    Raises:
        OSError: If the model cannot be read.
        ValueError: If it has no tokenizer.
    """
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    model, tokenizer = open_address(
        options.model,
        device=options.device,
        dtype=DTYPES[options.dtype],
        revision=options.revision or None,
    )
    if tokenizer is None:
        raise ValueError(f"A text needs a tokenizer, got none in {options.model}; add its files.")
    return model, tokenizer


def read_input(read: Callable[[], str]) -> str:
    """Reads text from standard input.

    Raises:
        ValueError: If it is not in UTF-8; some locales read other bytes as halves of surrogates.
    """
    try:
        text = read()
        text.encode()
    except UnicodeError as error:
        raise ValueError(f"Standard input must be text in UTF-8, got {error}.") from None
    return text


def said(role: str, text: str) -> Mapping[str, str]:
    """Returns one turn of a chat."""
    return {"role": role, "content": text}

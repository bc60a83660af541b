"""The commands `generate` and `read`; wrong options are refused before torch is loaded."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Literal

from dllm_decode.cli.input_lines import read_prompts
from dllm_decode.settings.commands import GOES_ON
from dllm_decode.settings.constraints import constraint_json
from dllm_decode.settings.files import input_file, output_file, read_input
from dllm_decode.settings.ranks import ProcessRank
from dllm_decode.text.brackets import split_blanks, split_choices

if TYPE_CHECKING:
    from dllm_decode.text.constraints import Constraint


def run_generate(options: Namespace) -> int:
    """Answers one question or fills one template; with `--input`, answers a file."""
    if bool(options.input) != bool(options.output):
        raise ValueError(
            "--input and --output must be given together: a prompt and an answer a line."
        )
    return _answer_file(options) if options.input else _answer_question(options)


def _answer_file(options: Namespace) -> int:
    """Answers the prompts of a file that have no answer yet."""
    _check_files(options)
    process = ProcessRank.of_launch()
    from dllm_decode.cli.model_setup import load_setup
    from dllm_decode.cli.prompt_files import answer_file

    setup = load_setup(options)
    try:
        done = answer_file(
            setup, options.input, options.output, num_rows=options.num_rows or 8,
            chat=_chat(options), progress=process.rank == 0 and sys.stderr.isatty(),
            process=process,
        )  # fmt: skip
    except KeyboardInterrupt:
        sys.stderr.write(GOES_ON)
        return 130
    sys.stderr.write(f"{done}\n")
    return 0


def _answer_question(options: Namespace) -> int:
    """Answers one question, or fills one template."""
    _check_question(options)
    text = read_input(sys.stdin.read) if options.text == "-" else options.text
    if text is not None and not text.strip():
        raise ValueError("The question must not be empty; give a text, or - to read one.")
    constraint = _constraint(options)
    from dllm_decode.cli.model_setup import load_setup

    out = load_setup(options).answer(
        text, live=options.live, chat=_chat(options), template=options.template,
        constraint=constraint,
    )  # fmt: skip
    if not options.live:
        sys.stdout.write(f"{out.texts[0]}\n")
    sys.stderr.write(f"{out.cost}\n")
    return 0


def _chat(options: Namespace) -> Literal["auto", False]:
    """Returns how `generate` is to read texts."""
    return False if options.plain else "auto"


def _constraint(options: Namespace) -> "Constraint | None":
    """Returns the constraint that options name; loads numpy if there is one, but no torch."""
    written = constraint_json(options)
    if written is None:
        return None
    from dllm_decode.text.constraints import constraint_of

    return constraint_of(written)


def _check_question(options: Namespace) -> None:
    """Raises ValueError if the options of a single question contradict each other."""
    if options.num_rows is not None:
        raise ValueError("--num-rows must be left out without --input: there is one question.")
    if options.text is None and not options.template:
        raise ValueError("A question must be given, or --template, or --input with --output.")
    split_blanks(options.template)
    if options.template and (options.gen_length is not None or options.stop_at_eos):
        raise ValueError(
            "--gen-length and --stop-at-eos must be left out with --template, which is filled as "
            "a whole."
        )


def _check_files(options: Namespace) -> None:
    """Raises ValueError if a file of prompts cannot be answered with the options."""
    if options.text is not None or options.template or options.live:
        raise ValueError("--input must be given without a text, --template and --live.")
    if options.regex or options.json_schema or options.choice:
        raise ValueError(
            "--regex, --json-schema and --choice must be left out with --input, whose lines "
            'have their own: "constraint": {"regex": "[0-9]+"}.'
        )
    source = input_file("--input", options.input, "JSON lines")
    target = output_file("--output", options.output)
    if target.exists() and target.samefile(source):
        raise ValueError(f"--output must be another file than --input, got {options.output!r}.")
    read_prompts(source)


def run_read(options: Namespace) -> int:
    """Writes how probable each allowed answer is at each choice of a text."""
    split_choices(options.text)
    from dllm_decode import read
    from dllm_decode.settings.models import open_model

    loaded = open_model(options.model, options, options.revision)
    # Declared as in `Loaded`.
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

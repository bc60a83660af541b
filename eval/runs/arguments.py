"""Command-line options that several commands share. Nothing heavy is imported: help is at once."""

import argparse
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Parser: TypeAlias = ArgumentParser | _ArgumentGroup

DTYPES = ("float32", "bfloat16", "float16")


class Option(NamedTuple):
    """How an option of the decode is written.

    Attributes:
        read: Turns its text into its value; None for a switch.
        help: What it says.
        choices: What it may be, if that is a list.
    """

    read: Callable[[str], Any] | None
    help: str
    choices: tuple[str, ...] | None = None


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def whole(text: str) -> int:
    """Reads a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def number(text: str) -> float:
    """Reads a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def ids(text: str) -> tuple[int, ...]:
    """Reads token ids, joined by commas."""
    return tuple(whole(one) for one in text.split(",") if one.strip())


DECODING: Mapping[str, Option] = {
    "gen_length": Option(positive, "answer length in tokens (default: the task's)"),
    "block_length": Option(positive, "tokens per block (default: the task's, else the model's)"),
    "temperature": Option(number, "of the proposals (default: 0, greedy)"),
    "top_p": Option(number, "propose from the likeliest tokens with this probability (default: 1)"),
    "top_k": Option(whole, "propose from so many likeliest tokens (default: 0, all)"),
    "cfg_scale": Option(number, "strength of classifier-free guidance (default: 0)"),
    "confidence_from": Option(
        str, "probabilities at temperature 1, or as sampled from (default: raw)",
        ("raw", "tempered"),
    ),
    "banned_ids": Option(ids, "token ids that are never proposed, joined by commas"),
    "deferred_ids": Option(ids, "token ids that are committed last, joined by commas"),
    "seed": Option(whole, "of the noise (default: 0)"),
    "stop_at_eos": Option(None, "stop an answer at its end-of-text token (default: yes)"),
    "truncate_at_eos": Option(None, "fill behind an end-of-text token at once (default: no)"),
}  # fmt: skip
"""By field of `DecodeConfig` its option; a test holds them together."""


def add_decoding(
    parser: ArgumentParser, *, repeat: bool, instead: Mapping[str, Option] = MappingProxyType({})
) -> None:
    """Adds the options of the decode.

    Args:
        parser: Gets the options.
        repeat: They may be repeated to compare several values.
        instead: Options that this command reads in its own way.
    """
    title = "options of the decode" + (", each may be repeated to compare" if repeat else "")
    group = parser.add_argument_group(title)
    for name, option in {**DECODING, **instead}.items():
        written = f"--{name.replace('_', '-')}"
        if option.read is None:
            group.add_argument(
                written, action=argparse.BooleanOptionalAction, default=None, help=option.help
            )
            continue
        group.add_argument(
            written,
            type=option.read,
            choices=option.choices,
            action="append" if repeat else "store",
            metavar=None if option.choices else "N",
            help=option.help,
        )


def axes_of(options: Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the values of the options of the decode that were given, for a sweep."""
    given = {name: getattr(options, name) for name in DECODING}
    return {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in given.items()
        if value is not None
    }


def given_of(options: Namespace) -> dict[str, Any]:
    """Returns the options of the decode that were given, each once."""
    given = {name: getattr(options, name) for name in DECODING}
    return {name: value for name, value in given.items() if value is not None}


def add_model(parser: Parser, default: str | None = "mini") -> None:
    """Adds which model is decoded."""
    shown = f" (default: {default})" if default else ""
    parser.add_argument(
        "--model", default=default,
        help=f"embedded name, folder or hub id{shown}; what its files do not say follows a "
        "question mark: 'FOLDER?family=my_module:MY_FAMILY&mask_id=5', also block_length, "
        "adapter, quantize",
    )  # fmt: skip
    parser.add_argument("--revision", default="", help="branch, tag or commit of a hub id")


def add_machine(parser: Parser) -> None:
    """Adds where and in which precision the model runs."""
    add = parser.add_argument
    add("--device", default="cpu",
        help="cpu, cuda, cuda:1, or auto, which spreads the model over all devices; of several "
        "processes, each has its own 'cuda' (default: cpu)")  # fmt: skip
    add("--dtype", choices=DTYPES, help="of the parameters (default: the checkpoint's)")
    add("--threads", type=positive, help="processor threads (default: torch's choice)")


def add_recording(parser: Parser) -> None:
    """Adds how records are made."""
    add = parser.add_argument
    add("--no-trace", action="store_true",
        help="record no steps and confidences: for timings, since looking costs time")  # fmt: skip
    add("--allow-code", action="store_true",
        help="run programs that the model wrote, in a sandbox: humaneval, mbpp")  # fmt: skip
    add("--code-runner", metavar="COMMAND", default="",
        help="run them in a container instead: a command that starts Python with its program on "
        "standard input, such as "
        "'podman run --rm -i --network none python:3.12-slim python3 -'")  # fmt: skip
    add("--retry-errors", action="store_true", help="decode examples anew that raised an error")


def add_run(parser: ArgumentParser) -> None:
    """Adds the options of `run`."""
    add = parser.add_argument
    add("task", help="address of the task, see below")
    add("out", help="results folder, made if need be")
    add_model(parser)
    add("--sampler", action="append", metavar="EXPR",
        help="repeat to compare; the first is the reference "
        '(default: "FixedSchedule()" and "ConfidenceThreshold(0.9)")')  # fmt: skip
    add("--cache", action="append", metavar="EXPR", help="repeat to compare (default: NoCache())")
    add("--verifier", action="append", metavar="EXPR",
        help="repeat to compare (default: NoVerifier())")  # fmt: skip
    add("--blocks", action="append", metavar="EXPR",
        help="block schedule; repeat to compare (default: Sequential())")  # fmt: skip
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")
    add("--prompts", choices=("chat", "plain"), default="",
        help="put prompts into the chat template, or leave them plain "
        "(default: the task's)")  # fmt: skip
    add_decoding(parser, repeat=True)
    _add_folder(parser)
    add_machine(parser)
    add_recording(parser)


def add_sweep(parser: ArgumentParser) -> None:
    """Adds the options of `sweep`."""
    add = parser.add_argument
    add("config", help="TOML file, such as eval/sweeps/lists.toml")
    add("out", help="results folder, made if need be")
    add("--model", action="append", help="instead of the file's models; repeat to compare")
    add_decoding(parser, repeat=True)
    _add_folder(parser)
    add_machine(parser)
    add_recording(parser)


def add_cache_error(parser: ArgumentParser) -> None:
    """Adds the options of `cache-error`."""
    add = parser.add_argument
    add("task", nargs="?", default="",
        help="address of the task (default: random prompts, no accuracy)")  # fmt: skip
    add_model(parser)
    add("--sampler", default="ConfidenceThreshold(0.9)", metavar="EXPR",
        help="which positions to commit (default: ConfidenceThreshold(0.9))")  # fmt: skip
    add("--cache", action="append", metavar="EXPR", help="repeat to compare (default: all)")
    add("--blocks", default="Sequential()", metavar="EXPR",
        help="block schedule (default: Sequential())")  # fmt: skip
    add("--num-prompts", type=positive, default=16, help="random prompts (default: 16)")
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")
    add("--json", metavar="FILE", help="also write the figures to this file")
    add_decoding(parser, repeat=False)
    add_machine(parser)


def _add_folder(parser: Parser) -> None:
    add = parser.add_argument
    add("--skip-impossible", action="store_true",
        help="leave out settings whose parts do not fit together; the report says why")  # fmt: skip
    add("--drop-others", action="store_true",
        help="report the settings of this command only; records of others stay")  # fmt: skip

"""Command-line options that several commands share. Nothing heavy is imported: help is at once."""

from argparse import ArgumentParser
from collections.abc import Mapping

from eval.runs.options import Parser, add_decoding, num_threads, positive

DTYPES = ("float32", "bfloat16", "float16")

PLAIN: Mapping[str, str] = {
    "sampler": "ConfidenceThreshold(0.9)", "cache": "NoCache()", "verifier": "NoVerifier()",
    "blocks": "Sequential()",
}  # fmt: skip
"""Plug-ins by default."""

_PLUGINS = {
    "sampler": "which positions to commit", "cache": "which columns to recompute",
    "verifier": "how proposals are checked", "blocks": "block schedule",
}  # fmt: skip


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


def add_plugins(parser: Parser, defaults: Mapping[str, str], *, repeat: bool = False) -> None:
    """Adds options that name plug-ins.

    Args:
        parser: Gets the options.
        defaults: By option its default; in words, where it may be repeated.
        repeat: They may be repeated to compare several.
    """
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name}",
            action="append" if repeat else "store",
            default=None if repeat else default,
            metavar="EXPR",
            help=f"{_PLUGINS[name]}{', repeat to compare' * repeat} (default: {default})",
        )


def add_batches(parser: Parser) -> None:
    """Adds how examples are put together."""
    add = parser.add_argument
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")
    add("--prompts", choices=("chat", "plain"), default="",
        help="put prompts into the chat template, or leave them plain "
        "(default: the task's)")  # fmt: skip


def add_machine(parser: Parser) -> None:
    """Adds where and in which precision the model runs."""
    add = parser.add_argument
    add("--device", default="cpu",
        help="cpu, cuda, cuda:1, or auto, which spreads the model over all devices; of several "
        "processes, each has its own 'cuda' (default: cpu)")  # fmt: skip
    add("--dtype", choices=DTYPES, help="of the parameters (default: the checkpoint's)")
    add("--threads", type=num_threads, help="processor threads (default: torch's choice)")


def add_recording(parser: Parser) -> None:
    """Adds how records are made."""
    add = parser.add_argument
    add("--no-trace", action="store_true",
        help="record no steps and confidences: for timings, since looking costs time")  # fmt: skip
    add("--allow-code", action="store_true",
        help="run programs that the model wrote, in a sandbox: humaneval, mbpp")  # fmt: skip
    add("--code-runner", metavar="RUNNER", default="auto",
        help="the sandbox: bwrap, podman, docker, podman:IMAGE, docker:IMAGE, or a command that "
        "starts Python with its program on standard input (default: auto, the first of bwrap, "
        "podman and docker that works)")  # fmt: skip
    add("--retry-errors", action="store_true", help="decode examples anew that raised an error")


def add_run(parser: ArgumentParser) -> None:
    """Adds the options of `run`."""
    add = parser.add_argument
    add("task", help="address of the task, see below")
    add("out", help="results folder, made if need be")
    add_model(parser)
    defaults = {**PLAIN, "sampler": '"FixedSchedule()" and "ConfidenceThreshold(0.9)"'}
    add_plugins(parser, defaults, repeat=True)
    add_batches(parser)
    add_decoding(parser, repeat=True)
    _add_recorded(parser)


def add_sweep(parser: ArgumentParser) -> None:
    """Adds the options of `sweep`."""
    add = parser.add_argument
    add("config", help="TOML file, such as eval/sweeps/lists.toml")
    add("out", help="results folder, made if need be")
    add("--model", action="append", help="instead of the file's models; repeat to compare")
    add_decoding(parser, repeat=True)
    _add_recorded(parser)


def add_cache_error(parser: ArgumentParser) -> None:
    """Adds the options of `cache-error`."""
    add = parser.add_argument
    add("task", nargs="?", default="",
        help="address of the task (default: random prompts, no accuracy)")  # fmt: skip
    add_model(parser)
    add_plugins(parser, {"sampler": "ConfidenceThreshold(0.9)", "blocks": PLAIN["blocks"]})
    add_plugins(parser, {"cache": "all"}, repeat=True)
    add("--num-prompts", type=positive, default=16, help="random prompts (default: 16)")
    add("--batch-size", type=positive, default=16, help="rows decoded together (default: 16)")
    add("--json", metavar="FILE", help="also write the figures to this file")
    add_decoding(parser)
    add_machine(parser)


def _add_recorded(parser: Parser) -> None:
    add = parser.add_argument
    add("--skip-impossible", action="store_true",
        help="leave out settings whose parts do not fit together; the report says why")  # fmt: skip
    add("--drop-others", action="store_true",
        help="report the settings of this command only; records of others stay")  # fmt: skip
    add_machine(parser)
    add_recording(parser)

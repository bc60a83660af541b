"""The command `dllm-decode`: answer a question, chat, serve, evaluate, train, measure speed.

It parses and dispatches; what a command does is imported once the command line is read, so that
help and typing mistakes are answered at once.
"""

import dllm_decode.launch

# isort: split
import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO

from eval.runs.arguments import add_machine, add_model
from eval.runs.options import add_decoding
from eval.serving.arguments import add_serve
from eval.texts import require_utf8
from eval.training.arguments import add_distil, add_train_filter

_EXAMPLES = """\
examples:
  dllm-decode generate "emma has 12 apples. emma finds 5 more apples and then gives 2 apples to \
      ben. how many apples does emma have now?"
  dllm-decode generate --live --sampler "LocalLeap()" "..."
  dllm-decode chat --model GSAI-ML/LLaDA-8B-Instruct --device cuda --cache "DualCache()"
  dllm-decode serve --model mini
  dllm-decode eval run "word_problems?split=test&limit=100" results/a --sampler "LocalLeap()"
  dllm-decode train-filter --task "word_problems?split=train&limit=500"
  dllm-decode distil --model mini --output runs/distil --learning-rate 0.0003
  dllm-decode bench

The embedded model `mini` knows a few kinds of word problems only; docs/embedded_models.md lists
them. Samplers, caches, verifiers and block schedules are expressions, as their repr shows them;
your own are named with their module: "my_package.my_module:MarginThreshold(0.8)".
"""


_KEPT = "Stopped; what is done is kept, the same command goes on from here.\n"
_STOPPED = {"train-filter": _KEPT, "distil": _KEPT}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 2 if something was refused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Last, so that no file there replaces a package: modules of the user's own plug-ins.
    sys.path.append(os.getcwd())
    parser = make_parser()
    require_utf8(parser, words)
    # These two have command lines of their own.
    if words[:1] == ["eval"]:
        from eval.__main__ import main as evaluate

        return evaluate(words[1:], program="dllm-decode eval")
    try:
        if words[:1] == ["bench"]:
            return _bench(words[1:])
        options = parser.parse_args(words)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            if options.name in ("generate", "chat") and sys.stderr.isatty():
                # Importing torch takes seconds too.
                sys.stderr.write(f"Loading {options.model} ...\n")
            return _action(options.name)(options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog} {words[0]}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(_STOPPED.get(words[0], "Stopped.\n"))
        return 130


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Writes a warning as one line, without the source line that gave it."""
    sys.stderr.write(f"Warning: {message}\n")


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        prog="dllm-decode",
        description="Decodes masked-diffusion language models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=dllm_decode.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    generate = commands.add_parser("generate", help="answer a question")
    generate.add_argument("text", help="the question; - reads it from standard input")
    generate.add_argument("--live", action="store_true", help="show the answer while it is decoded")
    generate.add_argument(
        "--plain", action="store_true", help="take the text as it is, without the chat template"
    )
    chat = commands.add_parser("chat", help="talk with a model, turn by turn")
    for command in (generate, chat):
        add_model(command)
        command.add_argument(
            "--sampler", default="ConfidenceThreshold(0.9)", metavar="EXPR",
            help="which positions to commit (default: ConfidenceThreshold(0.9))",
        )  # fmt: skip
        command.add_argument(
            "--cache", default="NoCache()", metavar="EXPR",
            help="which columns to recompute (default: NoCache())",
        )  # fmt: skip
        command.add_argument(
            "--verifier", default="NoVerifier()", metavar="EXPR",
            help="how proposals are checked (default: NoVerifier())",
        )  # fmt: skip
        command.add_argument(
            "--blocks", default="Sequential()", metavar="EXPR",
            help="which positions are open (default: Sequential())",
        )  # fmt: skip
        add_decoding(command, defaults={})
        add_machine(command)
    add_serve(commands.add_parser(
        "serve", help="answer clients of OpenAI's API over HTTP"
    ))  # fmt: skip
    commands.add_parser("eval", help="measure accuracy and speed: dllm-decode eval --help")
    add_train_filter(commands.add_parser(
        "train-filter", help="train a Learn2PD filter and judge it on held-out prompts"
    ))  # fmt: skip
    add_distil(commands.add_parser(
        "distil", help="train a model to be sure of several tokens at a time: dParallel, d3LLM"
    ))  # fmt: skip
    commands.add_parser("bench", help="speed and memory on this machine: dllm-decode bench --help")
    return parser


def _action(name: str) -> Callable[[argparse.Namespace], int]:
    module, function = {
        "generate": ("eval.conversation", "generate_once"),
        "chat": ("eval.chat", "chat"),
        "serve": ("eval.serving.command", "run"),
        "train-filter": ("eval.training.filter_command", "run"),
        "distil": ("eval.training.distil_command", "run"),
    }[name]
    action: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
    return action


def _bench(words: list[str]) -> int:
    # By name: benchmarks stand above this package and may import it.
    sys.argv = ["dllm-decode bench", *words]
    runpy.run_module("benchmarks", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())

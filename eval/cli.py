"""The command `dllm-decode`: answer a question, chat, serve, evaluate, train, measure speed.

It parses and dispatches. The module of a command is imported once the command line is read, so that
help and typing mistakes are answered at once.
"""

import dllm_decode.launch

# isort: split
import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from dllm_decode.own_packages import require_own
from dllm_decode.serve.limits import Limits
from eval import arguments as own
from eval.runs.options import LENGTHS, OptionsOf, add_options, decoding
from eval.training import arguments as training

_LOST = "Stopped; nothing is kept.\n"
_KEPT = "Stopped; records are kept, the same command goes on from here.\n"
_GOES_ON = "Stopped; what is done is kept, the same command goes on from here.\n"


class Command(NamedTuple):
    """A command: its line in the help, and its options.

    `action` is the module and the function that do it, joined by a colon; `main` does a command
    without one. `stopped` is the message when it is interrupted.
    """

    help: str
    action: str = ""
    groups: Sequence[OptionsOf] = ()
    stopped: str = "Stopped.\n"


LISTED = ("samplers", "caches", "verifiers", "schedules", "models", "tasks")
_REST, _RECORDS = "model, prompts and machine", "programs and records"
_MODEL, _PLUGINS = (
    OptionsOf(own.MachineOptions, _REST, ("model", "revision")),
    OptionsOf(own.Plugins),
)
_BATCHES = OptionsOf(own.MachineOptions, _REST, ("batch_size", "prompts"))
_PLACE = ("device", "dtype", "threads")
_MACHINE = OptionsOf(own.MachineOptions, _REST, _PLACE)
_OWN_MACHINE = _MACHINE._replace(unset=True, defaults={"device": "a GPU if there is one"})
_RECORDING = OptionsOf(own.Recording, _RECORDS)
_TALK = (_MODEL, _PLUGINS, decoding(defaults={}), _OWN_MACHINE)
_TRAINING = (_MODEL, OptionsOf(training.QuestionOptions), _BATCHES)
_ACTORS = OptionsOf(own.MachineOptions, _REST, ("ray", "ray_actors"))
_SEVERAL = (decoding(repeat=True), _MACHINE, _ACTORS, _RECORDING)
_MEASURED = OptionsOf(own.MeasureOptions, names=("task", "out"))
_RECORDED = ("no_trace", "allow_code", "code_runner", "retry_errors")
_TWO = {"sampler": '"FixedSchedule()" and "ConfidenceThreshold(0.9)"'}

COMMANDS = {
    "generate": Command(
        "answer a question, or a file of them", "eval.conversation:generate_once",
        (OptionsOf(own.Question), *_TALK),
    ),
    "read": Command(
        "the probability of each allowed answer: 'it is [even|odd]'",
        "eval.conversation:read_once", (OptionsOf(own.Choices), _MODEL, _OWN_MACHINE),
    ),
    "chat": Command("talk with a model, turn by turn", "eval.conversation:chat", _TALK),
    "serve": Command(
        "answer clients of OpenAI's API over HTTP", "eval.serving:run",
        (_MODEL, _PLUGINS, OptionsOf(own.Server), _MACHINE, OptionsOf(Limits, "bounds"),
         decoding("options of the decode, unless a request says otherwise", defaults={})),
    ),
    "eval": Command("measure accuracy and speed: dllm-decode eval --help"),
    "train-filter": Command(
        "train a Learn2PD filter and judge it on held-out prompts",
        "eval.training.filter_command:run",
        (*_TRAINING, OptionsOf(training.FilterOptions), _MACHINE,
         decoding(names=training.FILTER_DECODING)),
        _GOES_ON,
    ),
    "distil": Command(
        "train a model to be sure of several tokens at a time: dParallel, d3LLM",
        "eval.training.distil_command:run",
        (*_TRAINING, OptionsOf(training.Distilled), decoding(names=LENGTHS),
         OptionsOf(training.Teacher, "the teacher, which is the model as it is"),
         OptionsOf(training.Training, "the training"), OptionsOf(training.Devices, _REST)),
        _GOES_ON,
    ),
    "bench": Command(
        "speed and memory on this machine: dllm-decode bench --help", "eval.cli:bench"
    ),
    **{kind: Command(f"list the {kind}, each with a line", "eval.listing:show") for kind in LISTED},
}  # fmt: skip

EVAL_COMMANDS = {
    "run": Command(
        "decode and score one task with one or more samplers",
        "eval.reports.command:run_and_report",
        (_MEASURED, _MODEL, OptionsOf(own.Plugins, repeat=True, defaults=_TWO), _BATCHES,
         *_SEVERAL),
        _KEPT,
    ),
    "sweep": Command(
        "run every combination that a TOML file names", "eval.reports.command:sweep_and_report",
        (OptionsOf(own.MeasureOptions, names=("config", "out", "model")), *_SEVERAL), _KEPT,
    ),
    "calibrate": Command(
        "find the fastest setting that keeps the accuracy, with a guarantee",
        "eval.calibrate.command:run",
        (_MEASURED, _MODEL, OptionsOf(own.Calibration),
         OptionsOf(own.Plugins, names=("cache", "verifier", "blocks")), _BATCHES, decoding(),
         _MACHINE,
         OptionsOf(own.Recording, _RECORDS, _RECORDED)),
        _KEPT,
    ),
    "report": Command(
        "write table, pictures and replays of a results folder", "eval.reports.command:report",
        (OptionsOf(own.ReportOptions, names=("folder", "replays", "cost", "before")),), _LOST,
    ),
    "trace": Command(
        "show how one example was decoded", "eval.reports.command:trace",
        (OptionsOf(own.ReportOptions, names=("folder", "example", "html", "gif")),), _LOST,
    ),
    "oracle": Command(
        "what samplers do on a model without errors of its own", "eval.oracle.command:run",
        (OptionsOf(own.Oracle),), _LOST,
    ),
    "cache-error": Command(
        "how far each cache is from exact", "eval.runs.cache_error:run",
        (OptionsOf(own.Errors), _MODEL, OptionsOf(own.Plugins, names=("blocks",)),
         OptionsOf(own.Plugins, names=("cache",), repeat=True, defaults={"cache": "all"}),
         OptionsOf(own.MachineOptions, names=("batch_size",)), decoding(), _MACHINE),
        _LOST,
    ),
    "lm": Command(
        "tasks of the Language Model Evaluation Harness", "eval.lm_harness.command:run",
        (_MODEL, _PLUGINS, OptionsOf(own.Harness), _MACHINE,
         decoding(defaults={"temperature": "the task's"})),
        _LOST,
    ),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 2 if something was refused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Last, so that no file there replaces a package: modules of the user's own plug-ins.
    sys.path.append(os.getcwd())
    parser = make_parser()
    _require_utf8(parser, words)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        # These two have command lines of their own.
        if words[:1] == ["eval"]:
            return evaluate(words[1:])
        if words[:1] == ["bench"]:
            options = argparse.Namespace(name="bench", words=words[1:])
        elif words and words[0] in EVAL_COMMANDS:
            parser.error(f"{words[0]} is a command of eval: dllm-decode eval {words[0]}")
        else:
            options = parser.parse_args(words)
        if options.name in ("generate", "read", "chat") and sys.stderr.isatty():
            # Importing torch takes seconds too.
            sys.stderr.write(f"Loading {options.model} ...\n")
        return _act(parser, COMMANDS[options.name], options)


def evaluate(arguments: Sequence[str] | None = None) -> int:
    """Runs `eval` and returns the exit status: 1 if examples failed, 2 if something was refused."""
    parser = make_eval_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    _require_utf8(parser, words)
    options = parser.parse_args(words)
    return _act(parser, EVAL_COMMANDS[options.name], options)


def bench(options: argparse.Namespace) -> int:
    """Runs the benchmarks."""
    require_own("benchmarks")
    # By name, because the benchmarks import this package.
    sys.argv = ["dllm-decode bench", *options.words]
    runpy.run_module("benchmarks", run_name="__main__")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line of `dllm-decode`."""
    about = "Decodes masked-diffusion language models."
    parser = _make_parser("dllm-decode", about, COMMANDS, _examples("dllm-decode"))
    parser.add_argument("--version", action="version", version=dllm_decode.__version__)
    return parser


def make_eval_parser() -> argparse.ArgumentParser:
    """Builds the command line of `eval`."""
    about = "Measures how well and how fast a decoder fills answers."
    examples = _examples("eval")
    return _make_parser("dllm-decode eval", about, EVAL_COMMANDS, examples, epilog=examples)


def _examples(program: str) -> str:
    return (Path(__file__).parent / "help" / f"{program}.txt").read_text(encoding="utf-8")


def _make_parser(
    program: str, about: str, commands: Mapping[str, Command], examples: str, *, epilog: str = ""
) -> argparse.ArgumentParser:
    """Builds a command line; `epilog` ends the help of each command."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=program, description=about, epilog=examples, formatter_class=as_written
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, command in commands.items():
        about = f"{command.help[0].upper()}{command.help[1:]}."
        add_options(
            parsers.add_parser(
                name, help=command.help, description=about, epilog=epilog,
                formatter_class=as_written,
            ),
            command.groups,
        )  # fmt: skip
    return parser


def _act(parser: argparse.ArgumentParser, command: Command, options: argparse.Namespace) -> int:
    """Runs a command and returns the exit status."""
    module, _, function = command.action.partition(":")
    try:
        action: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
        return action(options)
    except (ValueError, OSError, ImportError) as error:
        sys.stderr.write(f"{parser.prog} {options.name}: {error}\n")
        return 2
    except KeyboardInterrupt:
        goes_on = options.name == "generate" and options.output
        sys.stderr.write(_GOES_ON if goes_on else command.stopped)
        return 130


def _require_utf8(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Ends the process, as argparse does, if a word of the command line is in another encoding."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            parser.error(f"every argument must be text in UTF-8, got {word!a}")


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """Writes a warning as one line, without the source line that gave it."""
    sys.stderr.write(f"Warning: {message}\n")


if __name__ == "__main__":
    sys.exit(main())

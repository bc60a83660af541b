"""The command line: python -m eval run | sweep | report | ... It parses and dispatches.

What a command does is imported once the command line is read, so that help and typing mistakes
are answered at once.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from eval.calibrate.arguments import add_calibrate
from eval.lm_harness.arguments import add_lm
from eval.oracle.arguments import add_oracle
from eval.reports.arguments import add_report, add_trace
from eval.runs.arguments import add_cache_error, add_run, add_sweep
from eval.texts import require_utf8

_KEPT = "Stopped; records are kept, the same command goes on from here.\n"
_LOST = "Stopped; nothing is kept.\n"


class Command(NamedTuple):
    """A command.

    Attributes:
        help: What it does, in a line.
        add_arguments: Adds its options.
        action: The module and the function that do it, joined by a colon.
        stopped: What is said when it is interrupted.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    action: str
    stopped: str = _LOST


COMMANDS = {
    "run": Command(
        "decode and score one task with one or more samplers",
        add_run, "eval.reports.command:run_and_report", _KEPT,
    ),
    "sweep": Command(
        "run every combination that a TOML file names",
        add_sweep, "eval.reports.command:sweep_and_report", _KEPT,
    ),
    "calibrate": Command(
        "find the fastest setting that keeps the accuracy, with a guarantee",
        add_calibrate, "eval.calibrate.command:run", _KEPT,
    ),
    "report": Command(
        "write table, pictures and replays of a results folder",
        add_report, "eval.reports.command:report",
    ),
    "trace": Command(
        "show how one example was decoded", add_trace, "eval.reports.command:trace"
    ),
    "oracle": Command(
        "what samplers do on a model without errors of its own",
        add_oracle, "eval.oracle.command:run",
    ),
    "cache-error": Command(
        "how far each cache is from exact", add_cache_error, "eval.runs.cache_error:run"
    ),
    "lm": Command(
        "tasks of the Language Model Evaluation Harness", add_lm, "eval.lm_harness.command:run"
    ),
}  # fmt: skip

_EXAMPLES = """\
tasks are addresses:
  word_problems?split=test&limit=200      word_problems?split=test_large
  ledgers?split=test&limit=100            with --model mini-long
  lists/shuffle?n=6&limit=100             puzzles/sudoku4
  gsm8k?path=FOLDER&protocol=llada        jsonl:FILE.jsonl
  humaneval?path=FILE.jsonl.gz            mbpp?path=FOLDER&protocol=instruct
  writing/words_to_sentence?n=4           parallelbench:FOLDER#waiting_line/copy

samplers, caches, verifiers and block schedules are expressions, as their repr shows them:
  "ConfidenceThreshold(0.9)"   "Factor(factor=1.0)"   "DualCache()"   "MultiBlock(16)"
  "SelfVerify(4)"   "ARVerify(CausalTarget('mini-ar'))"   "Guided(CausalTarget('mini-ar'))"
your own are named with their module, which is imported (the rest is read, never evaluated):
  "my_package.my_module:MarginThreshold(0.8)"            my_tasks:Doubling?most=50
what was calibrated is named by its card, as --sampler, --blocks and so on:  "@card.json"

a run that was stopped goes on where it stopped: give the same command again.
"""


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m eval") -> int:
    """Runs the command line and returns the exit status: 1 if examples failed, 2 if refused.

    Args:
        arguments: The words; `None`: those of the process.
        program: How the user calls it, for help and messages.
    """
    parser = make_parser(program)
    words = list(sys.argv[1:] if arguments is None else arguments)
    require_utf8(parser, words)
    options = parser.parse_args(words)
    command = COMMANDS[options.name]
    module, _, function = command.action.partition(":")
    try:
        action: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
        return action(options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog} {options.name}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(command.stopped)
        return 130


def make_parser(program: str = "python -m eval") -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Measures how well and how fast a decoder fills answers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(
                name,
                help=command.help,
                description=command.help[0].upper() + command.help[1:] + ".",
                epilog=_EXAMPLES,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())

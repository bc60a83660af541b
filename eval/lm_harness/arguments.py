"""Command-line options of `lm`."""

from argparse import ArgumentParser, ArgumentTypeError
from math import inf

from eval.runs.arguments import PLAIN, add_machine, add_model, add_plugins
from eval.runs.options import add_decoding, count, number, positive

NLL = ("mc", "l2r")

_DEFAULTS = {"gen_length": "256; 'task': what the task allows", "temperature": "the task's"}


def add_lm(parser: ArgumentParser) -> None:
    """Adds the options of `lm`."""
    _add_model(parser)
    add = parser.add_argument
    add("--tasks", required=True, type=_names, help="names, joined by commas")
    add("--include-path", metavar="FOLDER", help="with task files of your own")
    add("--limit", type=_limit, help="examples of each task, or a share below 1 (default: all)")
    add("--num-fewshot", type=count, metavar="N", help="(default: the task's)")
    add("--fewshot-seed", type=int, default=1234, help="(default: 1234, the harness')")
    add("--apply-chat-template", action="store_true", help="ask in the model's chat template")
    add("--system-instruction", metavar="TEXT", help="the first turn, in a chat")
    add("--gen-kwargs", default="", metavar="NAME=VALUE,...",
        help="instead of the tasks' generation options")  # fmt: skip
    add("--use-cache", metavar="PATH",
        help="keep answers in files of this name, and use those of the same settings")  # fmt: skip
    add("--output", metavar="FOLDER", help="write results, samples and costs there")
    add("--confirm-run-unsafe-code", action="store_true",
        help="run what the model writes, where a task asks for that")  # fmt: skip


def _add_model(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add_model(parser)
    add_plugins(parser, PLAIN)
    add("--nll", choices=NLL,
        help="likelihood: Monte-Carlo bound or left to right (default: mc)")  # fmt: skip
    add("--mc-num", type=positive, help="mask patterns an answer (default: 128)")
    add("--batch-size", type=positive, help="rows of a forward (default: 16)")
    add_machine(parser)
    add_decoding(parser, defaults=_DEFAULTS, readers={"gen_length": _length})


def _length(text: str) -> int | str:
    return "task" if text == "task" else positive(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ArgumentTypeError("must name at least one task")
    return names


def _limit(text: str) -> float:
    limit = number(text)
    if not 0 < limit < inf:
        raise ArgumentTypeError(f"must be above 0, got {limit}")
    return limit

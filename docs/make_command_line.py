"""Prints docs/reference/command_line.md: the help of every command.

COLUMNS=100 python docs/make_command_line.py > docs/reference/command_line.md
"""

import argparse
from collections.abc import Iterator

from dllm_decode.cli.main import LISTS, commands, make_parser
from eval.commands import EVAL_COMMANDS, make_eval_parser


def helps() -> Iterator[tuple[str, str]]:
    """Yields the words of each command that has options, and its help."""
    for program, parser, known in (
        ("dllm-decode", make_parser(), commands()),
        ("dllm-decode eval", make_eval_parser(), EVAL_COMMANDS),
    ):
        (parsers,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        for name, command in known.items():
            if command.groups:
                parsers.choices[name].epilog = None
                yield f"{program} {name}", parsers.choices[name].format_help().strip()


def page() -> str:
    """Returns the page."""
    shown = ", ".join(f"`dllm-decode {name}`" for name in (*LISTS, "tasks"))
    head = (
        "# Command line\n\nThe help of each command, as `--help` shows it. "
        f"{shown} list what there is, each with a line."
    )
    parts = [f"## {name}\n\n```text\n{text}\n```" for name, text in helps()]
    return "\n\n".join([head, *parts]) + "\n"


if __name__ == "__main__":
    print(page(), end="")

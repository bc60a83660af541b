"""Prints docs/reference/command_line.md: the help of every command.

COLUMNS=100 python docs/make_command_line.py > docs/reference/command_line.md
"""

import argparse
from collections.abc import Iterator

from eval.cli import COMMANDS, EVAL_COMMANDS, make_eval_parser, make_parser


def helps() -> Iterator[tuple[str, str]]:
    """Yields the words of each command that has options, and its help."""
    for program, parser, commands in (
        ("dllm-decode", make_parser(), COMMANDS),
        ("dllm-decode eval", make_eval_parser(), EVAL_COMMANDS),
    ):
        (parsers,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        for name, command in commands.items():
            if command.groups:
                parsers.choices[name].epilog = None
                yield f"{program} {name}", parsers.choices[name].format_help().strip()


def page() -> str:
    """Returns the page."""
    listed = [name for name, one in COMMANDS.items() if one.action == "eval.listing:show"]
    shown = ", ".join(f"`dllm-decode {name}`" for name in listed)
    head = (
        "# Command line\n\nThe help of each command, as `--help` shows it. `bench` has commands of "
        f"its own: `dllm-decode bench --help`.\n{shown} list what there is, each with a line."
    )
    parts = [f"## {name}\n\n```text\n{text}\n```" for name, text in helps()]
    return "\n\n".join([head, *parts]) + "\n"


if __name__ == "__main__":
    print(page(), end="")

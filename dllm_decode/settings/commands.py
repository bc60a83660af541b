"""Declares a command, builds its command line, and runs it.

A command's module is imported only after the command line is read, so that help and the refusal of
typing mistakes do not wait for imports.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

from dllm_decode.settings.command_options import MachineOptions, ModelOptions, PluginOptions
from dllm_decode.settings.known import require_known
from dllm_decode.settings.options import OptionGroup, OptionParser, add_options

GOES_ON = "Stopped; what is done is kept, the same command goes on from here.\n"
REST = "model, prompts and machine"
"""Title of the options that most users leave as they are."""


class Command(NamedTuple):
    """A command: its line in the help, and its options.

    Attributes:
        action: Module and function that run the command, joined by a colon.
        stopped: The message when the command is interrupted.
        takes_words: True if the action itself reads the words after the command's name.
        below: Names of its subcommands, with which these words begin.
    """

    help: str
    action: str
    groups: Sequence[OptionGroup] = ()
    stopped: str = "Stopped.\n"
    takes_words: bool = False
    below: Collection[str] = ()


MODEL = OptionGroup(ModelOptions, REST)
PLUGINS = OptionGroup(PluginOptions)
MACHINE = OptionGroup(MachineOptions, REST)


def make_parser_of(
    program: str, about: str, commands: Mapping[str, Command], examples: str, *, epilog: str = ""
) -> OptionParser:
    """Builds a command line; `epilog` ends the help of each command."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = OptionParser(
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


def run_line(
    parser: argparse.ArgumentParser, commands: Mapping[str, Command], words: Sequence[str]
) -> int:
    """Reads the words of a command line, runs its command and returns the exit status."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            parser.error(f"every argument must be text in UTF-8, got {word!a}")
        # A variable of the shell that is not set gives an empty argument.
        if not word or (word.startswith("--") and word.partition("=")[1:] == ("=", "")):
            parser.error(f"every argument must have a value, got {word!r}")
    for name, command in commands.items():
        if words[:1] == [name] and command.takes_words:
            return _act(parser, command, argparse.Namespace(name=name, words=words[1:]))
        if words and words[0] in command.below:
            parser.error(f"{words[0]} is a command of {name}: {parser.prog} {name} {words[0]}")
    close = get_close_matches(words[0], commands, n=1) if words else []
    if close and words[0] not in commands:
        parser.error(f"there is no command {words[0]!r}; did you mean {close[0]}?")
    options = parser.parse_args(words)
    return _act(parser, commands[options.name], options)


def _act(parser: argparse.ArgumentParser, command: Command, options: argparse.Namespace) -> int:
    module, _, function = command.action.partition(":")
    try:
        require_known(options)
        model = vars(options).get("model")
        if isinstance(model, str) and sys.stderr.isatty():
            # Importing torch takes seconds too.
            sys.stderr.write(f"Loading {model} ...\n")
        action: Callable[[Any], int] = getattr(import_module(module), function)
        return action(options.words if command.takes_words else options)
    except (ValueError, OSError, ImportError) as error:
        sys.stderr.write(f"{parser.prog} {options.name}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(command.stopped)
        return 130

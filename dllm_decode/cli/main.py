"""The command `dllm-decode`: answer a question, chat, read probabilities, serve; and list plug-ins.

Other packages add their own commands by the entry points `dllm_decode.commands`, as `eval` does.
A command's module is imported only after the command line is read, so that help and the refusal of
typing mistakes do not wait for imports.
"""

import dllm_decode.launch

# isort: split
import argparse
import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from dllm_decode.cli import arguments as own
from dllm_decode.cli.known import require_known
from dllm_decode.cli.options import OptionParser, OptionsOf, add_options, decoding
from dllm_decode.own_packages import require_own
from dllm_decode.serve.limits import Limits

GROUP = "dllm_decode.commands"
"""Group of entry points; each names a `Command`."""

GOES_ON = "Stopped; what is done is kept, the same command goes on from here.\n"
REST = "model, prompts and machine"
"""Title of the options that most users leave as they are."""

_ROOT = Path(__file__).parents[2]


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
    groups: Sequence[OptionsOf] = ()
    stopped: str = "Stopped.\n"
    takes_words: bool = False
    below: Collection[str] = ()


MODEL = OptionsOf(own.ModelOptions, REST)
PLUGINS = OptionsOf(own.Plugins)
MACHINE = OptionsOf(own.MachineOptions, REST)
_OWN_MACHINE = MACHINE._replace(unset=True, defaults={"device": "a GPU if there is one"})
_TALK = (MODEL, PLUGINS, decoding(defaults={}), _OWN_MACHINE)

COMMANDS = {
    "generate": Command(
        "answer a question, or a file of them", "dllm_decode.cli.answering:generate_once",
        (OptionsOf(own.Question), *_TALK),
    ),
    "read": Command(
        "the probability of each allowed answer: 'it is [even|odd]'",
        "dllm_decode.cli.answering:read_once", (OptionsOf(own.Choices), MODEL, _OWN_MACHINE),
    ),
    "chat": Command("talk with a model, turn by turn", "dllm_decode.cli.conversation:chat", _TALK),
    "export": Command(
        "write a model in the official format of its family", "dllm_decode.cli.exporting:run",
        (OptionsOf(own.Export),),
    ),
    "serve": Command(
        "answer clients of OpenAI's API over HTTP", "dllm_decode.cli.serving:run",
        (MODEL, PLUGINS, OptionsOf(own.Server), MACHINE, OptionsOf(Limits, "bounds"),
         decoding("options of the decode, unless a request says otherwise", defaults={})),
    ),
}  # fmt: skip
LISTS = {
    kind: Command(f"list the {kind}, each with a line", "dllm_decode.cli.listing:show")
    for kind in ("samplers", "caches", "verifiers", "schedules")
} | {
    "models": Command(
        "list the models; or what one needs, before it is downloaded",
        "dllm_decode.cli.needs:run",
        (OptionsOf(own.Named),),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 2 if something was refused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # For modules of the user's plug-ins; last, so that no file there replaces a package.
    sys.path.append(os.getcwd())
    try:
        parser = make_parser()
    except ImportError as error:
        sys.stderr.write(f"dllm-decode: {error}\n")
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return run_line(parser, commands(), words)


@cache
def commands() -> dict[str, Command]:
    """Returns our commands and those that packages register, by name.

    Raises ImportError if a registered command cannot be imported.
    """
    entries = {entry.name: entry for entry in (*entry_points(group=GROUP), *_of_checkout())}
    added = sorted(entries.keys() - COMMANDS.keys() - LISTS.keys())
    return {**COMMANDS, **{name: _command_of(entries[name]) for name in added}, **LISTS}


def _of_checkout() -> Iterator[EntryPoint]:
    """Yields the entry points that our checkout declares, which pip may not have installed."""
    file = _ROOT / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    groups = project.get("project", {}).get("entry-points", {})
    for name, value in groups.get(GROUP, {}).items():
        yield EntryPoint(name, value, GROUP)


def _command_of(registered: EntryPoint) -> Command:
    package = registered.module.partition(".")[0]
    if (_ROOT / package).is_dir():
        require_own(package)
    try:
        command: Command = registered.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"The command {registered.name} must be {registered.value}, as an installed package "
            f"says, got the error: {error}. Install that package anew, or remove it."
        ) from error
    return command


def make_parser() -> OptionParser:
    """Builds the command line of `dllm-decode`; raises ImportError as `commands` does."""
    about = "Decodes masked-diffusion language models."
    examples = (Path(__file__).parent / "help/dllm-decode.txt").read_text(encoding="utf-8")
    parser = make_parser_of("dllm-decode", about, commands(), examples)
    parser.add_argument("--version", action="version", version=dllm_decode.__version__)
    return parser


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
        if options.name in ("generate", "read", "chat") and sys.stderr.isatty():
            # Importing torch takes seconds too.
            sys.stderr.write(f"Loading {options.model} ...\n")
        action: Callable[[Any], int] = getattr(import_module(module), function)
        return action(options.words if command.takes_words else options)
    except (ValueError, OSError, ImportError) as error:
        sys.stderr.write(f"{parser.prog} {options.name}: {error}\n")
        return 2
    except KeyboardInterrupt:
        goes_on = options.name == "generate" and options.output
        sys.stderr.write(GOES_ON if goes_on else command.stopped)
        return 130


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """Writes a warning as one line, without the source line that gave it."""
    sys.stderr.write(f"Warning: {message}\n")

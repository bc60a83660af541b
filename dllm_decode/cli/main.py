"""The command `dllm-decode`: answer a question, chat, read probabilities, serve; and list plug-ins.

Other packages add their own commands by the entry points `dllm_decode.commands`, as `eval` does.
"""

import dllm_decode.launch

# isort: split
import os
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from dllm_decode.cli.command_options import (
    ChoiceOptions,
    ExportOptions,
    NamedModelOptions,
    QuestionOptions,
    ServerOptions,
)
from dllm_decode.own_packages import require_own
from dllm_decode.serve.limits import Limits
from dllm_decode.settings.command_options import ConstraintOptions
from dllm_decode.settings.commands import MACHINE, MODEL, PLUGINS, Command, make_parser_of, run_line
from dllm_decode.settings.options import OptionGroup, OptionParser, decode_options

GROUP = "dllm_decode.commands"
"""Group of entry points; each names a `Command`."""

_ROOT = Path(__file__).parents[2]
_OWN_MACHINE = MACHINE._replace(unset=True, defaults={"device": "a GPU if there is one"})
_TALK = (MODEL, PLUGINS, decode_options(defaults={}), _OWN_MACHINE)

COMMANDS = {
    "generate": Command(
        "answer a question, or a file of them", "dllm_decode.cli.answering:run_generate",
        (OptionGroup(QuestionOptions), OptionGroup(ConstraintOptions), *_TALK),
    ),
    "read": Command(
        "the probability of each allowed answer: 'it is [even|odd]'",
        "dllm_decode.cli.answering:run_read", (OptionGroup(ChoiceOptions), MODEL, _OWN_MACHINE),
    ),
    "chat": Command("talk with a model, turn by turn", "dllm_decode.cli.conversation:chat", _TALK),
    "export": Command(
        "write a model in the official format of its family", "dllm_decode.cli.exporting:run",
        (OptionGroup(ExportOptions), MODEL),
    ),
    "serve": Command(
        "answer clients of OpenAI's API over HTTP", "dllm_decode.cli.serving:run",
        (MODEL, PLUGINS, OptionGroup(ServerOptions), MACHINE, OptionGroup(Limits, "bounds"),
         decode_options("options of the decode, unless a request says otherwise", defaults={})),
    ),
}  # fmt: skip
LISTS = {
    kind: Command(f"list the {kind}, each with a line", "dllm_decode.cli.listing:show")
    for kind in ("samplers", "caches", "verifiers", "schedules")
} | {
    "models": Command(
        "list the models; or what one needs, before it is downloaded",
        "dllm_decode.cli.model_description:run",
        (OptionGroup(NamedModelOptions),),
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
    ours = {entry.name: entry for entry in _checkout_entries()}
    # Those of a checkout replace all that pip installed of it, perhaps at another commit.
    installed = [
        entry
        for entry in entry_points(group=GROUP)
        if not ours or entry.dist is None or entry.dist.name != "dllm-decode"
    ]
    entries = {entry.name: entry for entry in installed} | ours
    added = sorted(entries.keys() - COMMANDS.keys() - LISTS.keys())
    return {**COMMANDS, **{name: _command_of(entries[name]) for name in added}, **LISTS}


def _checkout_entries() -> Iterator[EntryPoint]:
    """Yields the entry points that our checkout declares; none without a checkout."""
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


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """Writes a warning as one line, without the source line that gave it."""
    sys.stderr.write(f"Warning: {message}\n")

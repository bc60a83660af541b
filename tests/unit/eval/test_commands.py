"""Options of all commands: no command lacks one, and help is shown at once."""

import argparse
import inspect
import io
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from toys import HashModel

from dllm_decode import DecodeConfig, decode
from dllm_decode.cli import main as cli
from dllm_decode.engine.compatibility import require_plugins
from dllm_decode.settings.models import Loaded
from dllm_decode.settings.options import FIRST, OPTIONS, axes_of, given_options
from dllm_decode.settings.plugins import canonical_plugin
from eval.commands import EVAL_COMMANDS as COMMANDS
from eval.commands import evaluate as main
from eval.commands import make_eval_parser as make_parser
from eval.lm_harness.settings import settings_of
from eval.reports.grid import show_grid
from eval.sweeps.sweep import read_sweep

# A value of each option that is not its default.
VALUES: dict[str, Any] = {
    "gen_length": 48, "block_length": 24, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
    "cfg_scale": 1.5, "confidence_from": "tempered", "banned_ids": (3, 4), "deferred_ids": (5,),
    "seed": 11, "stop_at_eos": False, "truncate_at_eos": True,
}  # fmt: skip
NEEDED = {
    "run": ["lists/copy", "out"],
    "sweep": ["config.toml", "out"],
    "calibrate": ["lists/copy", "out"],
    "lm": ["--tasks", "a"],
    "generate": ["text"],
    "chat": [],
}
# A plug-in of each kind. A sweep has its file.
PLUGINS = {
    "sampler": "Factor(0.8)", "cache": "DualCache()", "verifier": "SelfVerify(2)",
    "blocks": "MultiBlock(8)",
}  # fmt: skip
AXES = {"sampler": "samplers", "cache": "caches", "verifier": "verifiers", "blocks": "blocks"}
EVERYTHING: dict[str, Any] = VALUES | PLUGINS
WITHOUT = {("sweep", name) for name in PLUGINS}


def written(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    return [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from arguments_of(command)
        else:
            yield parser.prog, action


def test_every_argument_of_every_command_says_what_it_is() -> None:
    """The sampler of a command had no help."""
    everything = [*arguments_of(make_parser()), *arguments_of(cli.make_parser())]
    assert len(everything) > 100
    assert not [(command, action.dest) for command, action in everything if not action.help]


def test_every_option_and_plug_in_of_the_decode_has_a_value_to_try() -> None:
    assert VALUES.keys() == OPTIONS.keys() == {option.name for option in fields(DecodeConfig)}
    default = DecodeConfig()
    assert all(getattr(default, name) != value for name, value in VALUES.items())
    plugins = set(inspect.signature(require_plugins).parameters) - {"model"}
    assert plugins == PLUGINS.keys() <= set(inspect.signature(decode).parameters)


@pytest.mark.parametrize("command", NEEDED)
def test_every_option_and_plug_in_is_in_every_command_that_decodes(command: str) -> None:
    """truncate_at_eos was in none, and neither was a block schedule."""
    parser = make_parser() if command in COMMANDS else cli.make_parser()
    for name, value in EVERYTHING.items():
        words = [command, *NEEDED[command], *written(name, value)]
        if (command, name) in WITHOUT:
            with pytest.raises(SystemExit):
                parser.parse_args(words)
            continue
        options = parser.parse_args(words)
        # In calibrate a sampler is a setting, to which other parts may be added.
        place = "settings" if (command, name) == ("calibrate", "sampler") else name
        parsed = given_options(options) if name in VALUES else vars(options)
        assert parsed[place] in (value, [value]), name
        if command in ("run", "sweep") and name in VALUES:
            assert axes_of(options) == {name: (value,)}
            DecodeConfig(**{name: axes_of(options)[name][0]})


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_option_arrives_in_a_sweep_and_in_the_harness(tmp_path: Path, name: str) -> None:
    value = EVERYTHING[name]
    text = str(list(value) if isinstance(value, tuple) else value)
    if isinstance(value, str | bool):
        text = f'"{value}"' if isinstance(value, str) else text.lower()
    file, axis = tmp_path / "sweep.toml", AXES.get(name, name)
    lines = {"model": '"mini"', "tasks": '["lists/copy"]', "samplers": '["Factor()"]'}
    for form in (f"[{text}]", text) if name in VALUES else (f"[{text}]",):
        file.write_text(
            "".join(f"{key} = {entry}\n" for key, entry in (lines | {axis: form}).items())
        )
        sweep = read_sweep(file)
        assert (sweep.axes[name] if name in VALUES else getattr(sweep, axis)) == (value,)
    options = make_parser().parse_args(["lm", "--tasks", "a", *written(name, value)])
    described = settings_of(options, Loaded(HashModel(), None, "float64")).described()
    assert described[name] == (canonical_plugin(value, name) if name in PLUGINS else value)


def test_several_values_of_an_option_are_compared() -> None:
    words = "run lists/copy out --temperature 0 --temperature 0.5 --seed 2"
    axes = axes_of(make_parser().parse_args(words.split()))
    assert axes == {"temperature": (0.0, 0.5), "seed": (2,)}


def test_an_interrupt_does_not_claim_what_is_not_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In lm it claimed that records are kept."""

    def interrupt(*arguments: object) -> int:
        raise KeyboardInterrupt

    for action, words, message in (
        ("eval.oracle.command.run", ["oracle", "lists/copy"], "Stopped; nothing is kept.\n"),
        ("eval.sweeps.run_sweep.run_sweep", ["run", "lists/copy", "out"], "records are kept"),
    ):
        monkeypatch.setattr(action, interrupt)
        assert main(words) == 130
        assert message in capsys.readouterr().err


COMMAND_LINES = [
    *([name] for name, command in cli.commands().items() if not command.takes_words),
    *(["eval", name] for name in COMMANDS),
    [],
    ["eval"],
]


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_help_fits_a_small_terminal(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Examples of 100 columns were wrapped, and 14 lines of usage came before all else."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([*words, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("usage: dllm-decode")
    assert lines[1] == ""


def test_the_help_of_a_run_begins_with_the_options_that_most_users_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    section = capsys.readouterr().out.partition("options:\n")[2].partition("\n\n")[0]
    names = [line.split()[0] for line in section.splitlines() if line.startswith("  --")]
    assert names == [f"--{name.replace('_', '-')}" for name in FIRST if name != "settings"]
    assert len(names) == 10


def test_a_table_fits_a_small_terminal() -> None:
    head = ("cache", "KL from exact, nats", "decisions changed", "accuracy", "NFE", "positions")
    long = "DualCache(before=16) " * 5
    row = (f"`{long}`", "0.0324 (0.0226)", "0.125 (0.072)", "0.125 (0.072)", "3", "133")
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as captured:
        show_grid(console, [head, row])
    name, *table = captured.get().splitlines()
    assert name == f"1. {long}"
    assert max(map(len, table)) <= 80
    assert table[-1].split() == ["1.", *" ".join(row[1:]).split()]

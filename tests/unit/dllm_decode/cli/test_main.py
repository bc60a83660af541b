"""Commands that packages register by entry points, in a new Python."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_decode.cli import main as cli

ROOT = Path(__file__).parents[4]
OVEN = """
from dllm_decode.cli.main import Command

BAKE = Command("bake a cake", "oven:bake")
ROAST = Command("roast", "oven:roast", takes_words=True, below=("duck",))


def bake(options):
    print("baked by", options.name)
    return 0


def roast(words):
    if words == ["duck", "--burnt"]:
        raise ValueError("The duck must not be burnt.")
    print("roasted", *words)
    return 3
"""


def installed(folder: Path, package: str = "oven", **commands: str) -> Path:
    """Installs a package with a module `oven`, and registers commands of it."""
    metadata = folder / f"{package}-1.dist-info"
    metadata.mkdir(parents=True)
    (folder / "oven.py").write_text(OVEN)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in commands.items())
    (metadata / "entry_points.txt").write_text(f"[{cli.GROUP}]\n{lines}")
    return folder


def run(*words: str, path: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [path, root]))}
    command = [sys.executable, "-m", "dllm_decode", *words]
    return subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True)


def test_a_package_adds_commands(tmp_path: Path) -> None:
    path = installed(tmp_path, bake="oven:BAKE", roast="oven:ROAST", generate="oven:BAKE")
    shown = run("--help", path=path).stdout
    assert "bake a cake" in shown
    # No package takes the place of a command of ours.
    assert "answer a question, or a file of them" in shown
    assert run("bake", path=path).stdout == "baked by bake\n"
    roasted = run("roast", "duck", "-x", path=path)
    assert (roasted.stdout, roasted.returncode) == ("roasted duck -x\n", 3)
    burnt = run("roast", "duck", "--burnt", path=path)
    assert burnt.stderr == "dllm-decode roast: The duck must not be burnt.\n"
    assert burnt.returncode == 2
    assert "duck is a command of roast: dllm-decode roast duck" in run("duck", path=path).stderr


@pytest.mark.parametrize("value", ["oven:GRILL", "no_such_module:GRILL"])
def test_a_command_that_cannot_be_imported_is_named(value: str, tmp_path: Path) -> None:
    refused = run("--help", path=installed(tmp_path, grill=value))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"dllm-decode: The command grill must be {value}")
    assert "Install that package anew, or remove it." in refused.stderr


def test_help_of_all_commands_loads_nothing_heavy() -> None:
    """It took seven seconds."""
    heavy = {"torch", "fastapi", "pydantic", "uvicorn", "transformers"}
    code = f"""
import sys
from dllm_decode.cli.main import make_parser
from eval.commands import make_eval_parser
print(make_parser().format_help(), make_eval_parser().format_help())
make_parser().parse_args(["serve"])
assert not {heavy!r} & set(sys.modules), sys.modules.keys() & {heavy!r}
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in ("generate", "serve", "eval", "train-filter", "distil", "tasks", "models"):
        assert re.search(rf"^    {name}\s", shown, re.MULTILINE)


def test_without_the_packages_that_register_them_their_commands_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line knows `eval` by its entry point alone."""
    monkeypatch.setattr(cli, "entry_points", lambda group: ())
    monkeypatch.setattr(cli, "_ROOT", tmp_path)
    cli.commands.cache_clear()
    try:
        assert cli.commands().keys() == cli.COMMANDS.keys() | cli.LISTS.keys()
        with pytest.raises(SystemExit, match=r"^2$"):
            cli.main(["eval"])
    finally:
        cli.commands.cache_clear()
    assert "invalid choice: 'eval'" in capsys.readouterr().err


def test_commands_of_an_older_install_of_a_checkout_are_forgotten(tmp_path: Path) -> None:
    shown = run("--help", path=installed(tmp_path, "dllm-decode", gone="eval.commands:GONE"))
    assert shown.returncode == 0, shown.stderr
    assert "gone" not in shown.stdout


def test_an_installed_package_needs_no_checkout(tmp_path: Path) -> None:
    """A package as pip writes it: entry points in the metadata, and no pyproject.toml."""
    for package in ("samplers", "dllm_decode", "eval"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("assets"))
    declared = {entry.name: entry.value for entry in cli._checkout_entries()}
    assert declared.keys() == {"eval", "train-filter", "distil", "tasks"}
    installed(tmp_path, **declared)
    shown = run("eval", "--help", path=tmp_path, root=tmp_path)
    assert shown.stdout.startswith("usage: dllm-decode eval")

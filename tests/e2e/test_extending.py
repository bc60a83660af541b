"""The recipes of docs/extending are complete programs, and run as they are written."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from eval.commands import evaluate as main

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "extending.md").read_text(encoding="utf-8")
PAGES = [DOCS / page for page in re.findall(r"^\| \[.*\]\((.*)\) \|", INDEX, re.MULTILINE)]
RECIPES = [page.read_text(encoding="utf-8") for page in PAGES]
FILE = re.compile(r'^```\w+ title="(\w+\.\w+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("recipe", RECIPES, ids=[page.stem for page in PAGES])
def test_a_recipe_runs_as_it_is_written(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = FILE.findall(recipe)
    # One recipe uses the files of those before it.
    before = FILE.findall("".join(RECIPES[: RECIPES.index(recipe)]))
    for name, text in before + files:
        (tmp_path / name).write_text(text, encoding="utf-8")
        # Another recipe's module of the same name must not be used.
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    commands = [line for block in COMMANDS.findall(recipe) for line in block.splitlines()]
    assert files
    assert commands
    for command in commands:
        words = shlex.split(command)
        if words[:2] == ["dllm-decode", "eval"]:
            assert main(words[2:]) == 0, command
        else:
            assert words[0] == "python"
            assert words[1] in dict(files)
            runpy.run_path(str(tmp_path / words[1]), run_name="__main__")


def test_every_recipe_is_in_the_index() -> None:
    assert {*PAGES} == {*(DOCS / "extending").glob("*.md")}
    assert len(PAGES) == len({*PAGES})

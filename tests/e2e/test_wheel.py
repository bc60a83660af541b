"""The wheel holds all that the packages need, and works outside the checkout."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("hatchling", reason="needs the extra test")

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
# The section of the README.
FIRST_ANSWER = r"## First answer\n\n```python\n(.*?)```\n\n```\n(.*?)```"


def run(*words: str, cwd: Path, **environment: str) -> str:
    # The checkout must not be found.
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**outside, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    path = os.pathsep.join(sys.path)
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT, PYTHONPATH=path)
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(files - names) == []
    for kind in (
        r".*/py\.typed",
        r".*\.pyi",
        r".*\.safetensors",
        r"eval/sweeps/.*\.toml",
        ".*/help/.*",
    ):
        assert any(re.fullmatch(kind, name) for name in names), kind
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_three_lines_of_the_readme_run_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with ZipFile(wheel) as opened:
        opened.extractall(site)
    section = re.search(FIRST_ANSWER, (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert section is not None
    code, shown = section.groups()
    code += "import dllm_decode, samplers\nprint(dllm_decode.__file__, samplers.__file__)\n"
    # The libraries are those of this environment.
    path = os.pathsep.join(
        [str(site), *(entry for entry in sys.path if entry and Path(entry) != ROOT)]
    )
    *answer, places = run("-c", code, cwd=tmp_path, PYTHONPATH=path).splitlines()
    assert "\n".join(answer) == shown.strip()
    assert all(place.startswith(str(site)) for place in places.split())
    help_text = run("-m", "dllm_decode", "eval", "--help", cwd=tmp_path, PYTHONPATH=path)
    assert "how well and how fast" in help_text

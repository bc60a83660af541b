"""Dockerfile and Makefile: every path, extra and option in them exists. Nothing is built here."""

import json
import shlex
import subprocess
import tomllib
from pathlib import Path

from dllm_decode.cli.main import make_parser

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions and their arguments, without comments and continuation lines."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    listed = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in listed]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def copied() -> list[str]:
    return [path for rest in arguments("COPY") for path in shlex.split(rest)[:-1]]


def test_all_that_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    assert len(copied()) == len(set(copied())) > 5
    assert set(copied()) == allowed
    assert all((ROOT / path).exists() for path in copied())


def test_all_that_a_build_needs_is_copied() -> None:
    """Hatchling reads the packages, the version, the readme and the licences."""
    project = PYPROJECT["project"]
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, project["readme"], *project["license-files"], "pyproject.toml"}
    assert needed <= set(copied())


def test_the_package_is_installed_with_extras_that_exist_and_the_constraints() -> None:
    installs = [shlex.split(rest) for rest in arguments("RUN") if "pip install" in rest]
    assert len(installs) == 2
    for words in installs:
        assert words[words.index("--constraint") + 1] == "constraints.txt"
        assert words[words.index("--extra-index-url") + 1] == "$TORCH_INDEX"
    extras = installs[1][-1].removeprefix(".[").removesuffix("]").split(",")
    assert "serve" in extras
    assert set(extras) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_the_command_is_one_that_the_parser_knows() -> None:
    (entry,), (rest,), (port,) = map(arguments, ("ENTRYPOINT", "CMD", "EXPOSE"))
    program, *words = [*json.loads(entry), *json.loads(rest)]
    assert program in PYPROJECT["project"]["scripts"]
    options = make_parser().parse_args(words)
    assert (options.host, options.model) == ("0.0.0.0", "mini")
    assert str(options.port) == port


def test_the_check_of_its_health_is_python_that_asks_the_port() -> None:
    (health,), (port,) = map(arguments, ("HEALTHCHECK", "EXPOSE"))
    program, flag, code = json.loads(health.partition(" CMD ")[2])
    assert (program, flag) == ("python", "-c")
    compile(code, "Dockerfile", "exec")
    assert f"127.0.0.1:{port}/health" in code


def test_the_server_does_not_run_as_root() -> None:
    (user,) = arguments("USER")
    assert any(f"useradd --uid {user} " in rest for rest in arguments("RUN"))


def test_the_makefile_names_tests_that_exist() -> None:
    shown = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True)
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("TYPED_TESTS := "))
    files = line.removeprefix("TYPED_TESTS := ").split()
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []

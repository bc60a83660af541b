import os
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_decode.launch import cpu_quota, prepare, run_main

ROOT = Path(__file__).parents[3]
ENTRY_POINTS = (
    ["-m", "eval", "oracle", "lists/shuffle?n=3", "--rows", "2"],
    ["-m", "dllm_decode", "generate", "--help"],
    *(
        pytest.param([*words, "--help"], marks=pytest.mark.slow)
        for words in (
            ["-m", "eval"], ["-m", "benchmarks"],
            ["examples/llada_gsm8k.py"], ["examples/my_sampler.py"],
            ["examples/mini/train.py"],
        )
    ),
)  # fmt: skip
# Put on the path of the child as sitecustomize: reports the setting when torch starts to load, and
# ends a child that would do more than print help, because loading torch takes seconds.
SPY = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            values = [os.environ.get(n) for n in ("OMP_WAIT_POLICY", "THP_MEM_ALLOC_ENABLE")]
            print("LOADED", *values, file=sys.stderr, flush=True)
            if "--help" not in sys.orig_argv:
                os._exit(0)
sys.meta_path.insert(0, Spy())
"""


def started(words: list[str], *first: Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new Python, where some folders are searched before ours."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*first, ROOT]))
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("command", ENTRY_POINTS, ids=" ".join)
def test_every_entry_point_sets_how_threads_wait_before_torch_is_loaded(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPY)
    result = started(command, tmp_path)
    assert result.returncode == 0, result.stderr
    seen = [line for line in result.stderr.splitlines() if line.startswith("LOADED")]
    # The help of these must not wait seven seconds for torch.
    is_lazy = command[1] in ("dllm_decode", "eval") and "--help" in command
    assert set(seen) == (set() if is_lazy else {"LOADED PASSIVE 1"})


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "7", "THP_MEM_ALLOC_ENABLE": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    prepare()
    assert {name: os.environ[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "99900000 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: float | None
) -> None:
    monkeypatch.setattr("dllm_decode.launch._num_visible", lambda: 64)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("samplers", "{name}.py", ["-c", "import dllm_decode"]),
        ("eval", "{name}/__init__.py", ["-m", "dllm_decode", "--help"]),
        ("eval", "{name}/rules.py", ["-m", "dllm_decode", "--help"]),
    ],
)
def test_a_foreign_module_of_our_name_is_explained(
    name: str, words: list[str], file: str, tmp_path: Path
) -> None:
    """Packages were imported in place of ours: No module named 'samplers.base'."""
    path = tmp_path / file.format(name=name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    result = started(words, tmp_path, cwd=tmp_path)
    if file.endswith("rules.py"):
        # A folder without __init__.py gives way to a package that Python finds later.
        assert result.returncode == 0, result.stderr
        return
    last = result.stderr.splitlines()[-1]
    assert f"dllm_decode needs its own package {name}, got {path}" in last
    assert "Rename it, or run from another folder" in last


def test_an_interrupt_ends_a_program_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples printed eighty lines of traceback."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_main(interrupted)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Stopped.\n"
    run_main(lambda: 0)

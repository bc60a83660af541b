"""The help of the example with Ray, on a machine without Ray."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As if it were not installed.
WITHOUT = (
    "import runpy, sys; sys.modules['ray'] = None; sys.argv[0] = 'ray_serve.py'; "
    "runpy.run_path('examples/ray_serve.py', run_name='__main__')"
)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["--help"], 0, "--num-replicas"), ([], 2, "Ray must be installed: pip install")],
)
def test_help_needs_no_ray_and_a_start_names_what_is_missing(
    words: list[str], status: int, said: str
) -> None:
    """Both ended in a traceback of the import."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120.0, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

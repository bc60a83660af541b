import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "options",
    [
        ["--task", "word_problems?limit=2"],
        pytest.param(
            ["--task", "ledgers?limit=2", "--model", "mini-long", "--target", "mini-long-ar"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_example_shows_that_the_texts_are_the_same_in_fewer_forwards(
    options: list[str],
) -> None:
    command = [sys.executable, "-m", "examples.speculative", *options]
    # One thread: small models, and perhaps a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert "SelfVerify: 2 of 2 texts equal one token a forward" in done.stdout
    assert "SelfVerify, tree: 2 of 2 texts equal one token a forward" in done.stdout
    assert "ARVerify: 2 of 2 texts equal the target alone" in done.stdout
    assert "ARVerify, 4 looks: 2 of 2 texts equal the target alone" in done.stdout

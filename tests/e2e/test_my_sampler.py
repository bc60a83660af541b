"""The example that shows how to write a sampler."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_sampler.py"


def test_the_example_answers_with_the_embedded_model_in_fewer_forwards_than_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    tokens, _, _, forwards, _ = capsys.readouterr().out.splitlines()[-1].split()
    assert int(forwards) < int(tokens)

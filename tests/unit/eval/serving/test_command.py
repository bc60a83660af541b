"""The command `dllm-decode serve`: its extra, and its bounds."""

import pytest

from dllm_decode.serve.limits import Limits
from eval import serving as command
from eval.cli import main


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert main(["serve", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "fastapi" in said
    assert "pip install '.[serve]'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_rows": 0}, "num_rows must be at least 1"),
        ({"gen_length": 2048}, "gen_length must be at most max_tokens=1024"),
        ({"max_columns": 100}, "max_length must be at most max_columns=100"),
        ({"deadline_s": -1.0}, "deadline_s must be at least 0"),
    ],
)
def test_bounds_that_do_not_fit_together_are_refused(words: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**words)  # type: ignore[arg-type]

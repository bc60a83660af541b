"""Progress that no terminal shows is a line now and then."""

import io

import pytest
from rich.console import Console

from dllm_decode.text import progress_bar
from dllm_decode.text.progress_bar import ProgressBar


def shown() -> str:
    out = io.StringIO()
    with ProgressBar(Console(file=out, force_terminal=False, width=120), "task", 8) as bar:
        bar.update(2, "loss 0.5")
        bar.advance()
        bar.say("measured")
    return out.getvalue()


def test_lines_come_now_and_then_and_not_at_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown().splitlines() == ["task:  25.0 %, loss 0.5", "task: measured"]
    monkeypatch.setattr(progress_bar, "LINE_EVERY_S", 0.0)
    _, second, _ = shown().splitlines()
    assert second.startswith("task:  37.5 %")

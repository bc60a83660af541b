"""Progress on a terminal is a bar, elsewhere a line now and then."""

import io

import pytest
from rich.console import Console

from dllm_decode.text import progress_bar
from dllm_decode.text.progress_bar import ProgressBar


def shown(is_terminal: bool) -> str:
    out = io.StringIO()
    with ProgressBar(Console(file=out, force_terminal=is_terminal, width=120), "task", 8) as bar:
        bar.update(2, "loss 0.5")
        bar.advance()
        bar.say("measured")
    return out.getvalue()


def test_lines_come_now_and_then_and_not_at_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(False).splitlines() == ["task:  25.0 %, loss 0.5", "task: measured"]
    monkeypatch.setattr(progress_bar, "LINE_EVERY_S", 0.0)
    _, second, _ = shown(False).splitlines()
    assert second.startswith("task:  37.5 %")


def test_a_terminal_has_a_bar() -> None:
    drawn = shown(True)
    assert "━" in drawn
    assert "37.5 %" in drawn
    assert "task: measured" in drawn

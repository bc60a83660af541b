import io
from pathlib import Path

import eval_runs
import pytest
import torch
from eval_runs import TOKENIZER, model
from rich.console import Console
from rich.text import Text
from streamed import Streamer

from dllm_decode import DecodeOutput, Observer, decode
from eval.reports.summary import summarise
from eval.reports.terminal import draft_observer, show_settings, stream_to_terminal
from eval.runs.runner import execute
from samplers import ConfidenceThreshold, FixedSchedule


def run(*observers: Observer) -> DecodeOutput:
    return decode(
        model(), [[5, 6, 7], [8]], FixedSchedule(2), gen_length=8, block_length=4,
        observers=observers, stop_at_eos=False,
    )  # fmt: skip


def test_the_canvas_denoises_on_a_terminal() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with stream_to_terminal(TOKENIZER, row=1, console=console) as watch:
        out = run(watch)
    shown = Text.from_ansi(stream.getvalue()).plain
    assert TOKENIZER.decode(out.tokens[1].tolist()) in shown
    assert "· · ·" in shown
    assert "round 4, forward 4" in stream.getvalue()


def test_only_the_answer_is_written_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with stream_to_terminal(TOKENIZER, console=Console(file=stream, width=200)) as watch:
        out = run(watch)
    assert stream.getvalue().strip() == TOKENIZER.decode(out.tokens[0].tolist())


def test_drafts_go_to_a_streamer_and_the_answer_once() -> None:
    streamer = Streamer()
    out = run(draft_observer(streamer, row=1))
    assert len(streamer.drafts) == 3
    assert [int((draft == 1).sum()) for draft in streamer.drafts] == [6, 4, 2]
    (text,) = streamer.texts
    assert torch.equal(text, out.tokens[1][: len(text)])
    assert streamer.ended == 1


def test_transformers_own_streamer_takes_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    out = run(draft_observer(transformers.TextDiffusionStreamer(TOKENIZER)))
    answer = out.answers()[0]
    assert TOKENIZER.decode(answer) in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 200])
def test_settings_on_a_terminal_keep_names_and_intervals_whole(tmp_path: Path, width: int) -> None:
    """At 80 columns the lines of a Markdown table were folded wherever they ended."""
    samplers = (FixedSchedule(4), ConfidenceThreshold(0.9))
    folder = execute(eval_runs.runs(samplers=samplers), tmp_path)
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    rows = summarise(folder)["rows"]
    show_settings(console, rows)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "2. ConfidenceThreshold(threshold=0.9)\n" in shown
    assert all(len(line) <= width for line in shown.splitlines())
    for row in rows:
        interval = row["accuracy"]
        assert f"[{interval['low']:.3f}, {interval['high']:.3f}]" in shown
        assert f"{row['speed']['nfe']:.1f}" in shown
    assert ("tau" in shown) == (width > 100)

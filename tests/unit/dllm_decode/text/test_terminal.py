import io
import re
from pathlib import Path
from typing import Any

import eval_runs
import torch
from eval_runs import TOKENIZER, model
from rich.console import Console
from rich.text import Text
from served import byte_level
from tokenizers.pre_tokenizers import ByteLevel
from toys import HashModel

from dllm_decode import DecodeOutput, ForwardInputs, Observer, StepEvent, decode
from dllm_decode.text.terminal import stream_to_terminal
from eval.metrics.costs import COSTS
from eval.reports.summary import summarise
from eval.reports.table import show_settings
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


class Written(HashModel):
    """Answers every prompt alike; the last positions of a block are the most confident."""

    def __init__(self, answer: list[int], vocab_size: int, *, eos_id: int, mask_id: int) -> None:
        super().__init__(vocab_size, mask_id, (eos_id,))
        self.answer = answer

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        # The prompt is one token.
        positions = inputs.positions.gather(1, inputs.wanted) - 1
        written = torch.full((1000,), self.eos_ids[0])
        written[: len(self.answer)] = torch.tensor(self.answer)
        logits = torch.zeros(*positions.shape, self.vocab_size, dtype=torch.float64)
        tokens = written[positions.clamp(min=0)][..., None]
        return logits.scatter(-1, tokens, 8.0 + positions[..., None].double() / 100)


def screens_of(tokenizer: Any, model: HashModel, *, gen_length: int, height: int = 24) -> list[str]:
    """Decodes one token a step in blocks of 16; returns the live view of each step, and the last
    screen."""
    screens: list[str] = []
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=80, height=height)
    with stream_to_terminal(tokenizer, console=console) as shown:
        watch: Any = shown

        def keep(_: StepEvent) -> None:
            screens.append(watch.live.get_renderable().renderables[0].plain)

        decode(
            model, [[5]], FixedSchedule(16), gen_length=gen_length, block_length=16,
            observers=[watch, keep],
        )  # fmt: skip
    last = file.getvalue().rsplit("\x1b[2K", 1)[-1]
    return [*screens, re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", last)]


def words(answer: list[int]) -> Written:
    return Written(answer, len(TOKENIZER), eos_id=0, mask_id=1)


def test_what_follows_the_answer_is_a_count() -> None:
    """A screen of 24 lines showed 233 "<|endoftext|>" of an answer, and none of its words."""
    ids = TOKENIZER("emma has 4 apples")["input_ids"]
    *screens, last = screens_of(TOKENIZER, words(ids), gen_length=256)
    assert screens[0] == "· " * 15 + "… <|endoftext|> \u00d7 241"
    assert "· · · apples … <|endoftext|> \u00d7 252" in screens
    assert last.strip() == "emma has 4 apples"


def test_masks_after_the_open_block_are_a_count_until_the_answer_has_an_end() -> None:
    *screens, _ = screens_of(TOKENIZER, words([7] * 40), gen_length=64)
    assert screens[0] == "· " * 15 + TOKENIZER.decode([7]) + " … open \u00d7 48"


def test_an_answer_longer_than_the_terminal_shows_its_end() -> None:
    ids = list(range(10, 110))
    *screens, last = screens_of(TOKENIZER, words(ids), gen_length=128, height=6)
    assert all(screen.count("\n") < 4 for screen in screens)
    assert f"{TOKENIZER.decode([109])} … <|endoftext|>" in screens[-1]
    assert last.split() == TOKENIZER.decode(ids).split()


def test_characters_of_several_tokens_are_whole() -> None:
    """Each byte was decoded alone, to a replacement character."""
    letters = sorted(ByteLevel.alphabet())
    tokenizer = byte_level(letters)
    text = "答案是42 🙂"
    model = Written(tokenizer.encode(text).ids, 258, eos_id=256, mask_id=257)
    *screens, last = screens_of(tokenizer, model, gen_length=32)
    assert last.strip() == text
    assert not any("\ufffd" in screen for screen in screens)
    assert any("·42 🙂" in screen for screen in screens)


def test_settings_on_a_terminal_keep_names_and_intervals_whole(tmp_path: Path) -> None:
    """At 80 columns the lines of a Markdown table were folded wherever they ended."""
    samplers = (FixedSchedule(4), ConfidenceThreshold(0.9))
    rows = summarise(execute(eval_runs.runs(samplers=samplers), tmp_path)).summary["rows"]
    for width in (80, 200):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system=None, width=width)
        show_settings(console, rows, COSTS["forwards"])
        shown = file.getvalue()
        assert "2. ConfidenceThreshold()\n" in shown
        assert "\u2026" not in shown
        assert all(len(line) <= width for line in shown.splitlines())
        for row in rows:
            interval = row["accuracy"]
            assert f"[{interval['low']:.3f}, {interval['high']:.3f}]" in shown
            assert f"{row['speed']['nfe']:.1f}" in shown
        assert ("tau" in shown) == (width > 100)

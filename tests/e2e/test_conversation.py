"""`dllm-decode generate` answers questions, with every kind of verifier."""

import io
import re
import shlex
import sys
import warnings

import pytest
from served import QUESTIONS

from dllm_decode import GenerateOutput
from dllm_decode.cli.main import main, make_parser

QUESTION = QUESTIONS[0]


@pytest.mark.parametrize(
    "more",
    [
        ["Guided(CausalTarget('mini-ar'))"],
        # The target was to be loaded on "auto", which is no device.
        ["ARVerify(CausalTarget('mini-ar'))", "--device", "auto"],
    ],
)
def test_a_question_is_answered_with_any_verifier(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Verifiers with a target were refused: "Targets cannot be loaded here"."""
    assert main(["generate", QUESTION, "--gen-length", "64", "--verifier", *more]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["####", "34"]


def test_the_first_example_of_the_help_is_answered_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The question was of a kind that `mini` does not know, and the answer was nonsense."""
    shown = re.sub(r"\\\n\s*", "", make_parser().format_help())
    command = next(line for line in shown.splitlines() if "dllm-decode generate" in line)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["####", "15"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        # An empty constraint was left out, and an empty folder was the one at hand.
        (["generate", "q", "--regex", ""], "have a value, got"),
        (["generate", "q", "--regex="], "have a value, got"),
        (["eval", "run", "lists/copy", ""], "have a value, got"),
        (["eval", "report", "out", "--before", ""], "have a value, got"),
        # Bytes of another encoding ended in a traceback of the tokenizer.
        (["chat", "--model", "\udcff"], "be text in UTF-8, got '\\udcff"),
        (["eval", "report", "\udcff"], "be text in UTF-8, got '\\udcff"),
    ],
)
def test_an_argument_without_a_value_or_that_is_no_text_is_refused(
    words: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    assert f"every argument must {rule}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "errors"), [(["generate", "-"], "strict"), (["chat"], "surrogateescape")]
)
def test_an_input_that_is_no_text_is_refused(
    command: list[str], errors: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In the locale C such bytes are read as halves of surrogate pairs."""
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(command) == 2
    assert "Standard input must be text in UTF-8, got " in capsys.readouterr().err


def test_commands_change_a_chat_and_an_empty_line_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        QUESTION, "", "/reset", QUESTION,
        "/reset", "/undo", "/sampler FixedSchedule(4)", "/sampler Nothing()", "/nothing", "/rest",
        "/help",
        "/sampler Learn2PD('none.safetensors')", QUESTION, "/sampler FixedSchedule(4)",
        "/system emma has apples .", QUESTION, QUESTION, "/undo", "/history", "/exit", QUESTION,
    ]  # fmt: skip
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["chat", "--gen-length", "64"]) == 0
    shown = capsys.readouterr()
    first, again, answer, _ = shown.out.splitlines()
    assert first == again
    assert f"system: emma has apples .\n> {QUESTION}\n{answer}\n" in shown.err
    for sentence in (
        "There is nothing to undo.", "The sampler is FixedSchedule(steps_per_block=4",
        "'Nothing' is not known here", "There is no command /nothing", "did you mean /reset?",
        "/sampler EXPR",
        "begins anew, with a system text",
    ):  # fmt: skip
        assert sentence in shown.err


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The warning named a path of our sources, and showed the line."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["generate", "--plain", QUESTION, "--gen-length", "32"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Warning: The tokenizer has a chat template, and the texts are not")
    assert "forwards" in second


class Typed(io.StringIO):
    """Lines of a terminal; a line "^C" is an interrupt."""

    def isatty(self) -> bool:
        return True


def chat_on_terminal(monkeypatch: pytest.MonkeyPatch, *lines: str, model: str = "mini") -> int:
    typed = iter(lines)

    def next_line(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr(sys, "stdin", Typed())
    monkeypatch.setattr("builtins.input", next_line)
    return main(["chat", "--gen-length", "64", "--model", model])


def test_enter_asks_a_question_that_the_model_can_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat_on_terminal(monkeypatch, "", "", "/reset", "") == 0
    shown = capsys.readouterr()
    assert "answers word problems of twelve kinds, one at a time" in shown.err.replace("\n", " ")
    assert [line.split()[-1] for line in shown.out.splitlines()] == ["15", "15"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [(("^C", QUESTION, "^C"), 0), (("^C", "^C", QUESTION), 130)],
)
def test_an_interrupt_at_the_prompt_asks_once(
    lines: tuple[str, ...], status: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert chat_on_terminal(monkeypatch, *lines) == status
    shown = capsys.readouterr()
    assert shown.err.count("Ctrl-C again, or /exit, ends the chat.") == (2 if status == 0 else 1)
    assert bool(shown.out) == (status == 0)


def test_an_interrupted_answer_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **options: object) -> GenerateOutput:
        raise KeyboardInterrupt

    monkeypatch.setattr("dllm_decode.cli.model_setup.generate", interrupt)
    assert chat_on_terminal(monkeypatch, QUESTION, "/history") == 0
    shown = capsys.readouterr().err
    assert "Stopped; the question is forgotten." in shown
    assert "There are no questions and answers yet." in shown


def test_an_empty_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GenerateOutput, "texts", [""])
    assert chat_on_terminal(monkeypatch, QUESTION) == 0
    shown = capsys.readouterr()
    assert "The answer is empty: the model ended it at once." in shown.err.replace("\n", " ")
    assert not shown.out


def test_unknown_words_are_named_at_every_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert chat_on_terminal(monkeypatch, "zebras", "/reset", "zebras") == 0
    assert capsys.readouterr().err.count("not known to the tokenizer: zebras.") == 2

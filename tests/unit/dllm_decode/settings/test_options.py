"""Fields of a dataclass become options, whose documentation is their help."""

import argparse
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from dllm_decode import DecodeConfig
from dllm_decode.cli.main import main
from dllm_decode.settings.command_options import Positive
from dllm_decode.settings.options import OptionGroup, OptionParser, add_options, value_of


@dataclass(frozen=True)
class Oven:
    """An oven.

    Attributes:
        dish: Dish to bake, at most 90% full. More is ignored.
        heat: Heat in degrees.
        cover: Cover of the dish. `None`: a lid, v1.5.
        minutes: TV minutes.
        grill: Use the grill.
        mode: How to bake.
    """

    dish: str
    heat: Positive = 180
    cover: Annotated[str, "KIND"] | None = None
    minutes: list[float] = field(default_factory=lambda: [30.0, 0.5], metadata={"nargs": "+"})
    grill: bool = False
    mode: Literal["low", "high"] = "low"


def test_a_field_and_its_documentation_are_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OptionParser("bake")
    add_options(parser, [OptionGroup(Oven, names=("dish", "heat")), OptionGroup(Oven, "more")])
    values = vars(parser.parse_args(["cake", "--minutes", "1", "2.5", "--grill"]))
    assert values == {
        "dish": "cake", "heat": 180, "cover": None, "minutes": [1.0, 2.5], "grill": True,
        "mode": "low",
    }  # fmt: skip
    shown = " ".join(parser.format_help().split())
    assert shown.startswith("usage: bake dish [options]")
    assert "dish dish to bake, at most 90% full options:" in shown
    assert "--heat N heat in degrees (default: 180) more:" in shown
    assert "--cover KIND cover of the dish (default: a lid, v1.5)" in shown
    assert "--minutes N [N ...] TV minutes (default: 30 0.5)" in shown
    assert "--mode {low,high} how to bake (default: low)" in shown
    for words, message in (
        ([], "the following arguments are required: dish"),
        (["cake", "--heat", "0"], "argument --heat: must be at least 1, got 0"),
        (["cake", "--heat", "warm"], "argument --heat: must be a whole number, got 'warm'"),
        (["cake", "--mode", "off"], "argument --mode: invalid choice: 'off'"),
        (["cake", "--het", "1"], "unrecognized arguments: --het; did you mean --heat?"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        assert message in capsys.readouterr().err


def test_token_ids_with_a_mistake_are_told_what_they_must_be() -> None:
    """The message had no words: "must be , got '5,6,x'"."""
    wanted = "must be whole numbers with commas between them, got '5,6,x'"
    with pytest.raises(argparse.ArgumentTypeError, match=wanted):
        value_of("5,6,x", DecodeConfig.__annotations__["banned_ids"])
    for written, ids in (("(5,)", (5,)), ("[5, 6]", (5, 6)), ("()", ()), ("7", (7,))):
        assert value_of(written, DecodeConfig.__annotations__["banned_ids"]) == ids


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "hi", "--gen-lenght", "64"], "--gen-lenght; did you mean --gen-length?"),
        # The error named the question too.
        (
            ["generate", "--gen-lenght", "64", "hi"],
            "ments: --gen-lenght; did you mean",
        ),
        (["generat", "hi"], "there is no command 'generat'; did you mean generate?"),
        (["generate", "hi", "--sampels=F()"], "--sampels; did you mean --sampler?"),
        (["serve", "--prot", "80", "--hots", "a"], "; did you mean --port and --host?"),
        (["chat", "--no-stop-at-oes"], "did you mean --no-stop-at-eos?"),
        (["chat", "--zzz"], "unrecognized arguments: --zzz\n"),
        (["eval", "run", "lists/copy", "out", "--batchsize", "2"], "did you mean --batch-size?"),
    ],
)
def test_a_mistyped_option_is_told_the_one_that_is_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message named the mistyped option alone."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "number"),
    [(".5", 0.5), ("-.5", -0.5), ("1.", 1.0), ("0.25", 0.25), ("1e-3", 1e-3), ("2", 2.0)],
)
def test_numbers_are_read_as_python_writes_them(text: str, number: float) -> None:
    """--temperature .5 was refused: JSON has no such number."""
    kind = DecodeConfig.__annotations__["temperature"]
    assert value_of(text, kind) == number
    for wrong in (".", "+", "5..", "a.5", ".5x"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a number"):
            value_of(wrong, kind)

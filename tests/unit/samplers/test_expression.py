"""The text of a configuration is read, never evaluated."""

import math
from dataclasses import FrozenInstanceError, dataclass

import pytest

from samplers import EntropyBound, FixedSchedule, Frechet, LocalLeap, Sampler, parse
from samplers.expression import parse_expression


@dataclass(frozen=True)
class Pair:
    left: object
    right: object = ()


@dataclass(frozen=True)
class Leaf:
    pass


CONSTRUCTORS = {"Pair": Pair, "Leaf": Leaf}


@pytest.mark.parametrize(
    ("text", "sampler"),
    [
        ("LocalLeap(radius=6)", LocalLeap(radius=6)),
        ("LocalLeap(0.8, 0.7, 6)", LocalLeap(0.8, 0.7, 6)),
        ("LocalLeap", LocalLeap()),
        ("  LocalLeap ( ) \n", LocalLeap()),
        ("FixedSchedule(4, order='margin')", FixedSchedule(4, "margin")),
        ("EntropyBound(inf)", EntropyBound(math.inf)),
        ("Frechet(-inf)", Frechet(-math.inf)),
        ("Frechet(-0.5)", Frechet(-0.5)),
    ],
)
def test_the_text_builds_the_sampler(text: str, sampler: Sampler) -> None:
    assert parse(text) == sampler


def test_expressions_nest_in_calls_and_tuples() -> None:
    built = parse_expression("Pair(Pair(Leaf(), (1, Leaf())), right=(2.5, 'x'))", CONSTRUCTORS)
    assert built == Pair(Pair(Leaf(), (1, Leaf())), (2.5, "x"))
    assert parse_expression(repr(built), CONSTRUCTORS) == built


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LocalLeep()", r"'LocalLeep' is not known here; did you mean 'LocalLeap'\? Otherwise"),
        (
            "Zebra()",
            "'Zebra' is not known here; choose from AcceptAndRenoise, ConfidenceThreshold, ",
        ),
        ("LocalLeap(radios=6)", r"LocalLeap has no option 'radios'; did you mean 'radius'\?"),
        ("LocalLeap(", r"Expected an expression such as ConfidenceThreshold\(...\), got"),
        ("0.9", r"Expected an expression such as ConfidenceThreshold\(...\), got '0.9'."),
        ("", r"Expected an expression such as ConfidenceThreshold\(...\), got ''."),
        ("ConfidenceThreshold(1.5)", r"threshold must be a probability in \[0, 1\], got 1.5."),
        ("ConfidenceThreshold(1, 2, 3)", "ConfidenceThreshold does not take these arguments"),
        ("ConfidenceThreshold(0.9, threshold=0.9)", "does not take these arguments"),
        ("ConfidenceThreshold(threshold)", "Arguments are literals or calls of known names"),
        ("ConfidenceThreshold(1 / 2)", "Arguments are literals or calls of known names"),
        ("ConfidenceThreshold(*[0.9])", "Arguments are literals or calls of known names"),
        ("ConfidenceThreshold(**{'threshold': 0.9})", r"has no option '\*\*'"),
        ("samplers.LocalLeap()", "'samplers.LocalLeap' is not known here"),
    ],
)
def test_other_text_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_nothing_is_ever_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("LocalLeap(radius=print('run'))", "print('run')", "(lambda: print('run'))()"):
        with pytest.raises(ValueError, match="known"):
            parse(text)
    assert capsys.readouterr().out == ""


def test_an_option_given_twice_is_refused() -> None:
    """The syntax tree has both, and the last one used to win."""
    with pytest.raises(ValueError, match=r"LocalLeap has an option twice in .*; give it once"):
        parse("LocalLeap(radius=1, radius=2)")


def test_the_defaults_are_the_published_ones() -> None:
    for text in (
        "ConfidenceThreshold(0.9)", "EntropyBound(0.1, 'entropy')", "EntropyThreshold(0.5)",
        "Factor(1.0, 'paper')", "Frechet(0.25)", "Hierarchy(0.4, 0.9)", "Klass(0.9, 0.01, 2)",
        "Less(0.75, 0.04, 2)", "LocalLeap(0.9, 0.75, 4)",
    ):  # fmt: skip
        assert parse(text) == parse(text.partition("(")[0])


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        LocalLeap().radius = 5  # type: ignore[misc]  # the point of the test

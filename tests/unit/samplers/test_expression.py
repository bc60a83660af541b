"""The text of a configuration is read, never evaluated; users' own samplers by module and name."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dllm_decode import CachePolicy, NoCache
from samplers import ConfidenceThreshold, CreditDecoding, Sampler, parse
from samplers.expression import parse_expression, parse_plugin


@dataclass(frozen=True)
class Pair:
    left: object
    right: object = ()


@dataclass(frozen=True)
class Leaf:
    pass


CONSTRUCTORS = {"Pair": Pair, "Leaf": Leaf}


def test_expressions_nest_in_calls_and_tuples() -> None:
    built = parse_expression(" Pair (Pair(Leaf(), (1, Leaf())), right=(2.5, 'x'))\n", CONSTRUCTORS)
    assert built == Pair(Pair(Leaf(), (1, Leaf())), (2.5, "x"))
    assert parse_expression(repr(built), CONSTRUCTORS) == built


MODULE = """
from dataclasses import dataclass
from dllm_decode import CachePolicy, NoCache
from samplers import Decision, Sampler

SETTING = 3

@dataclass(frozen=True)
class MyRule(Sampler[None]):
    threshold: float = 0.5
    note: str = ""

    def step(self, view, state):
        return Decision(view.eligible), None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text("")
    (tmp_path / "their_package" / "rules.py").write_text(MODULE)
    (tmp_path / "their_package" / "broken.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    return "their_package.rules"


def test_a_sampler_of_one_s_own_is_named_by_its_module(module: str) -> None:
    rule = parse(f"{module}:MyRule(0.8)")
    assert repr(rule) == "MyRule(threshold=0.8, note='')"
    assert isinstance(rule, Sampler)
    assert parse(f"{module}:MyRule") == parse(f"{module}:MyRule()")
    wrapped = parse(f"CreditDecoding({module}:MyRule(threshold=0.8), alpha=1.0)")
    assert wrapped == CreditDecoding(rule, alpha=1.0)
    # A colon in a quoted text imports nothing.
    quoted = parse(f"{module}:MyRule(note='no_such_module:Rule')")
    assert "no_such_module:Rule" in repr(quoted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LocalLeep()", r"'LocalLeep' is not known here; did you mean 'LocalLeap'\? Otherwise"),
        ("Zebra()", "'Zebra' is not known here; choose from AcceptAndRenoise, ConfidenceThr"),
        ("LocalLeap(radios=6)", r"LocalLeap has no option 'radios'; did you mean 'radius'\?"),
        ("LocalLeap(", r"Expected an expression such as ConfidenceThreshold\(...\), got"),
        ("0.9", r"Expected an expression such as ConfidenceThreshold\(...\), got '0.9'."),
        ("ConfidenceThreshold(0.9, threshold=0.9)", "does not take these arguments"),
        ("ConfidenceThreshold(threshold)", "Arguments are literals or calls of known names"),
        ("ConfidenceThreshold(**{'threshold': 0.9})", r"has no option '\*\*'"),
        # The syntax tree has both, and the last one used to win.
        ("LocalLeap(radius=1, radius=2)", "LocalLeap has an option twice in .*; give it once"),
        ("no_such_module:Rule()", "'no_such_module:Rule' must be importable, got No module named"),
        ("their_package.broken:Rule()", "must be importable, got No module named 'no_such_dep"),
        ("{module}:NoRule()", "must be a class derived from Sampler, got nothing of this name"),
        ("{module}:MyRul(0.8)", r"got nothing of this name; did you mean 'MyRule'\?$"),
        ("{module}:Sampelr()", r"got nothing of this name\.$"),
        ("{module}:SETTING", "must be a class derived from Sampler, got a int"),
        ("{module}:NoCache()", "must be a class derived from Sampler, got a class NoCache"),
        ("their_package.rules.MyRule()", "is not known here"),
    ],
)
def test_other_text_is_refused_with_a_remedy(module: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text.replace("{module}", module))


def test_the_defaults_are_the_published_ones() -> None:
    for text in (
        "ConfidenceThreshold(0.9)", "EntropyBound(0.1, 'entropy')", "EntropyThreshold(0.5)",
        "Factor(1.0, 'paper')", "Frechet(0.25)", "Hierarchy(0.4, 0.9)", "Klass(0.9, 0.01, 2)",
        "Less(0.75, 0.04, 2)", "LocalLeap(0.9, 0.75, 4)",
    ):  # fmt: skip
        assert parse(text) == parse(text.partition("(")[0])


def test_caches_and_verifiers_are_found_in_the_same_way(module: str) -> None:
    assert parse_plugin(f"{module}:NoCache()", CachePolicy, {}) == NoCache()
    constructors = {"ConfidenceThreshold": ConfidenceThreshold}
    with pytest.raises(ValueError, match="must describe a CachePolicy, got a ConfidenceThreshold"):
        parse_plugin("ConfidenceThreshold(0.5)", CachePolicy, constructors)

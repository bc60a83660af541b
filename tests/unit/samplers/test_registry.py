"""Samplers from text: those of the package by name, and those of a user by module and name."""

from pathlib import Path

import pytest

from dllm_decode import CachePolicy, NoCache
from samplers import ConfidenceThreshold, CreditDecoding, Sampler, parse
from samplers.expression import parse_plugin

MODULE = """
from dataclasses import dataclass
from dllm_decode import CachePolicy, NoCache
from samplers import Decision, Sampler

SETTING = 3

class Other:
    pass

@dataclass(frozen=True)
class MyRule(Sampler[None]):
    threshold: float = 0.5
    note: str = ""

    def __post_init__(self):
        if self.threshold > 1:
            raise ValueError("threshold must be at most 1.")

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


def test_it_may_be_an_argument_of_another(module: str) -> None:
    wrapped = parse(f"CreditDecoding({module}:MyRule(threshold=0.8), alpha=1.0)")
    assert wrapped == CreditDecoding(parse(f"{module}:MyRule(0.8)"), alpha=1.0)


def test_a_colon_in_a_quoted_text_imports_nothing(module: str) -> None:
    rule = parse(f"{module}:MyRule(note='no_such_module:Rule')")
    assert "no_such_module:Rule" in repr(rule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module:Rule()", "'no_such_module:Rule' must be importable, got No module named"),
        ("their_package.broken:Rule()", "must be importable, got No module named 'no_such_dep"),
        ("{module}:NoRule()", "must be a class derived from Sampler, got nothing of this name"),
        ("{module}:Other()", "must be a class derived from Sampler, got a class Other"),
        ("{module}:SETTING", "must be a class derived from Sampler, got a int"),
        ("{module}:NoCache()", "must be a class derived from Sampler, got a class NoCache"),
        ("{module}:MyRule(2.0)", "threshold must be at most 1"),
        ("{module}:MyRule(limit=2)", "has no option 'limit'"),
        ("{module}:MyRule(", "Expected an expression such as"),
        ("their_package.rules.MyRule()", "is not known here"),
    ],
)
def test_other_text_is_refused_with_a_remedy(module: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text.replace("{module}", module))


def test_caches_and_verifiers_are_found_in_the_same_way(module: str) -> None:
    assert parse_plugin(f"{module}:NoCache()", CachePolicy, {}) == NoCache()  # type: ignore[type-abstract]
    known = {"ConfidenceThreshold": ConfidenceThreshold}
    with pytest.raises(ValueError, match="must describe a CachePolicy, got a ConfidenceThreshold"):
        parse_plugin("ConfidenceThreshold(0.5)", CachePolicy, known)  # type: ignore[type-abstract]

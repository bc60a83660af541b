"""The scores of free text."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from eval.tasks import text_scores
from eval.tasks.text_scores import bert_score, bleu, grammar, product, rouge


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Judges are kept for a process, but not from one test to the next."""
    forget()
    yield
    forget()


def forget() -> None:
    text_scores._language_tool.cache_clear()
    text_scores._bert_scorer.cache_clear()


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package of the extras can be imported."""
    for name in (
        "rouge_score", "rouge_score.rouge_scorer", "sacrebleu", "bert_score",
        "language_tool_python",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, None)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Puts a module with these names in the place of a package."""
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


def test_grammar_asks_language_tool_as_upstream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in place of the package's, because the package downloads one."""
    started = []

    class LanguageTool:
        def __init__(self, language: str, config: dict[str, int]) -> None:
            started.append((language, config))

        def check(self, text: str) -> list[str]:
            assert text == text.strip()
            return ["teh"] * text.count("teh")

    install(monkeypatch, "language_tool_python.exceptions", LanguageToolError=ArithmeticError)
    install(monkeypatch, "language_tool_python", LanguageTool=LanguageTool)
    assert grammar(" We row past the dock.\n") == 1.0
    assert grammar("We row past teh dock.") == 0.0
    assert grammar(" ") == 0.0
    assert started == [("en-US", {"maxCheckThreads": 1, "maxSpellingSuggestions": 1})]


@pytest.mark.parametrize(
    "kind", [ModuleNotFoundError, ConnectionError, SystemError, ArithmeticError]
)
def test_a_server_that_does_not_start_is_said(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package raises each of these: without Java, without network, with an old Java."""

    def fail(*args: Any, **options: Any) -> None:
        raise kind("No java install detected.")

    install(monkeypatch, "language_tool_python.exceptions", LanguageToolError=ArithmeticError)
    install(monkeypatch, "language_tool_python", LanguageTool=fail)
    with pytest.raises(ValueError, match=r"LanguageTool must start, got: No java .* needs Java 17"):
        grammar("We row.")


def test_bert_score_is_the_f_measure_of_the_packages_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scorer in place of the package's, because the package downloads weights."""

    class BERTScorer:
        def __init__(self, lang: str) -> None:
            assert lang == "en"

        def score(self, texts: list[str], references: list[str]) -> tuple[torch.Tensor, ...]:
            assert (texts, references) == (["We row."], ["All row."])
            return torch.tensor([0.1]), torch.tensor([0.2]), torch.tensor([0.75])

    install(monkeypatch, "bert_score", BERTScorer=BERTScorer)
    assert bert_score("We row.", "All row.") == 0.75

    def fail(lang: str) -> None:
        raise OSError("no weights")

    text_scores._bert_scorer.cache_clear()
    install(monkeypatch, "bert_score", BERTScorer=fail)
    with pytest.raises(ValueError, match="must have the weights of roberta-large, got: no weights"):
        bert_score("We row.", "All row.")


def test_bleu_and_rouge_have_their_closed_forms() -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    # Seven words and a mark, the seventh differs: precisions 7/8, 5/7, 4/6, 3/5, a quarter in all.
    first, second = "Who of us can row this boat ?", "Who of us can row this tub ?"
    precisions = 7 / 8 * 5 / 7 * 4 / 6 * 3 / 5
    assert bleu(first, second) == pytest.approx(precisions**0.25)
    assert bleu(second, second) == 1.0
    # Words in common, but no four in a row: nothing is smoothed.
    assert bleu("Who of us can dive ?", second) > 0
    assert bleu("Who of us dive ?", second) == 0.0
    # Two of three words in common, of four: precision 2/3, recall 1/2; stems are compared.
    shares = rouge("the boats sank", "a boat sank slowly")
    assert shares["rouge1"] == pytest.approx(4 / 7)
    assert shares["rouge2"] == pytest.approx(2 / 5)
    assert shares["rougeL"] == pytest.approx(4 / 7)


def test_without_their_packages_scores_are_undefined(nothing_installed: None) -> None:
    assert grammar("We row.") is bert_score("a", "a") is None
    assert product(0.0, grammar("We row.")) is None
    assert rouge("a", "a") == {"rouge1": None, "rouge2": None, "rougeL": None}
    assert bleu("a", "a") is None

"""The scores of free text."""

import sys

import pytest

from eval.tasks import text_scores
from eval.tasks.text_scores import bleu, grammar, includes, rouge


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of the extra cannot be imported."""
    for name in ("harper", "rouge_score", "rouge_score.rouge_scorer", "sacrebleu"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(text_scores, "_linter", text_scores._linter.__wrapped__)


@pytest.mark.parametrize(
    ("text", "words", "wanted"),
    [
        ("The boat-house is here.", ["boat"], True),
        ("A steamboat.", ["boat"], False),
        ("The captain's boat.", ["captain"], False),
        ("A boat, a crab.", ["boat", "crab"], True),
        ("A boat.", ["boat", "crab"], False),
        ("A boat.", ["boat", "boat"], False),
        ("Boat boat.", ["boat", "Boat"], True),
        ("A row-boat.", ["row boat"], True),
        ("A boat to row.", ["row boat"], False),
    ],
)
def test_words_count_whole_and_in_any_case(text: str, words: list[str], wanted: bool) -> None:
    assert includes(text, words) is wanted


def test_grammar_is_harpers_without_style_and_names() -> None:
    pytest.importorskip("harper")
    assert grammar("Every day we row, dive and drift near the dock.") == 1.0
    assert grammar("Xanthippa Quorl rows past the dock.") == 1.0
    assert grammar("We row past teh dock.") == 0.0
    assert grammar("He have an boat.") == 0.0
    assert grammar("  ") == 0.0


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
    assert grammar("We row.") is None
    assert rouge("a", "a") == {"rouge1": None, "rouge2": None, "rougeL": None}
    assert bleu("a", "a") is None

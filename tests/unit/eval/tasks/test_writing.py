"""Words to sentence, and the scores of free text."""

import random
import sys

import pytest

from eval.tasks import text_scores
from eval.tasks.text_scores import bleu, grammar, includes, is_one_sentence, rouge
from eval.tasks.writing import LEVELS, WordsToSentence, scenes


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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("“Row!” she said.", True),
        ("“Row!” She said it.", False),
        ("Is that 3.5 miles, Mr.Hill?", True),
        (' "Row, Ann!"\n', True),
        ("we row past the dock.", False),
        ("We row past the dock", False),
        ("We row. They dive.", False),
        ("We row\npast the dock.", False),
        ("We row past the the dock.", False),
        ("", False),
    ],
)
def test_one_sentence_has_a_form(text: str, wanted: bool) -> None:
    assert is_one_sentence(text) is wanted


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
    one, other = "Who of us can row this boat ?", "Who of us can row this tub ?"
    precisions = 7 / 8 * 5 / 7 * 4 / 6 * 3 / 5
    assert bleu(one, other) == pytest.approx(precisions**0.25)
    assert bleu(other, other) == 1.0
    # Words in common, but no four in a row: nothing is smoothed.
    assert bleu("Who of us can dive ?", other) > 0
    assert bleu("Who of us dive ?", other) == 0.0
    # Two of three words in common, of four: precision 2/3, recall 1/2; stems are compared.
    found = rouge("the boats sank", "a boat sank slowly")
    assert found["rouge1"] == pytest.approx(4 / 7)
    assert found["rouge2"] == pytest.approx(2 / 5)
    assert found["rougeL"] == pytest.approx(4 / 7)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [2, 8])
def test_references_are_right_and_broken_ones_are_not(level: str, n: int) -> None:
    pytest.importorskip("harper")
    task = WordsToSentence(n, level)
    for example in task.examples("test", 6):
        words = example.meta["words"]
        assert len(set(words)) == n
        assert set(task.score(example, example.target).values()) == {1.0}
        lacking = example.target.replace(random.Random(n).choice(words), "thing")
        assert task.score(example, lacking)["included"] == 0.0
        assert task.score(example, lacking)["answer"] == 0.0
        listed = task.score(example, ", ".join(words))
        assert (listed["included"], listed["answer"]) == (1.0, 0.0)


def test_levels_say_how_many_scenes_words_come_from() -> None:
    home = {word: scene for scene in scenes() for word in scene.words}
    assert len(home) == sum(len(scene.words) for scene in scenes())
    for level, num_scenes in (("easy", 1), ("medium", 2), ("hard", 5)):
        for example in WordsToSentence(5, level).examples("train", 30):
            assert len({home[word] for word in example.meta["words"]}) == num_scenes
            assert all(f" {word}" in str(example.prompt) for word in example.meta["words"])


def test_splits_are_disjoint_in_the_set_of_words() -> None:
    task = WordsToSentence(3, "easy")
    seen = [{frozenset(e.meta["words"]) for e in task.examples(s, 40)} for s in task.splits]
    assert [len(words) for words in seen] == [40, 40, 40]
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert len(WordsToSentence().examples()) == 200


def test_without_the_checker_grammar_and_answer_are_undefined(nothing_installed: None) -> None:
    task = WordsToSentence()
    example = task.examples(num_examples=1)[0]
    right = {"answer": None, "included": 1.0, "sentence": 1.0, "grammar": None}
    assert task.score(example, example.target) == right
    assert task.score(example, "no")["answer"] is None
    assert rouge("a", "a") == {"rouge1": None, "rouge2": None, "rougeL": None}
    assert bleu("a", "a") is None

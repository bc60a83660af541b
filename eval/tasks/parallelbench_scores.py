"""Scores of ParallelBench's answers, our own, by upstream's names of the scorers."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from eval.tasks.lists import placed
from eval.tasks.puzzles import is_latin, sudoku_grids
from eval.tasks.text_scores import bleu, grammar, includes, product, rouge

Scores = Mapping[str, float | None]

_STRICT_ITEMS = re.compile(r'"[^"]*"(?:, "[^"]*")*')


class Scorer(NamedTuple):
    """Scores a text, given the inputs of the prompt and the label, which has the fields `needs`."""

    score: Callable[[str, Mapping[str, Any], Any], Scores]
    needs: tuple[str, ...] = ()


def official_items(text: str) -> list[str]:
    """Reads the items after the last `[` up to the next `]`, split at commas, as upstream does.

    Double quotes and spaces around an item go; other quotes, tabs and line breaks are part of it.
    """
    inner = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return [item.strip(' "') for item in inner.split(",") if item.strip()]


def strict_items(text: str) -> list[str] | None:
    """Reads these items if they are written as `["A", "B"]` to the letter, otherwise None."""
    _, opened, rest = text.rpartition("[")
    inner, closed, _ = rest.partition("]")
    if not opened or not closed or not _STRICT_ITEMS.fullmatch(inner):
        return None
    return inner[1:-1].split('", "')


def is_label(items: list[str], label: Any) -> bool:
    """Says whether the items are those of the label, in order."""
    return items == (official_items(label) if isinstance(label, str) else list(label))


def is_shuffled(items: list[str], label: Any) -> bool:
    """Says whether the items are the given ones in another order."""
    return sorted(items) == sorted(label["input"]) and items != label["input"]


def is_edited(items: list[str], given: list[str], width: int, word: str) -> bool:
    """Says whether the items are the given ones with the word, if any, in the place of `width`."""
    starts = range(len(given) + 1 - width)
    return any(tuple(items) == placed(tuple(given), i, i + width, word) for i in starts)


def list_scorer(is_right: Callable[[list[str], Any], bool], *needs: str) -> Scorer:
    """Returns the scorer of a list: `answer` is upstream's, `answer_strict` to the letter."""

    def score(text: str, given: Mapping[str, Any], label: Any) -> Scores:
        if isinstance(label, dict) and label.get("n_words", 1) != 1:
            # Changes of several items at once: none of the published tasks asks for them.
            return dict.fromkeys(("answer", "answer_strict"))
        strict = strict_items(text)
        return {
            "answer": float(is_right(official_items(text), label)),
            "answer_strict": float(strict is not None and is_right(strict, label)),
        }

    return Scorer(score, needs)


def score_latin(text: str, given: Mapping[str, Any], label: Any) -> Scores:
    """Scores a Latin square: every row and column has each symbol once.

    The first row is the label's `first_row`, if it has one.

    `answer` takes the first rows of the right length and symbols; `answer_strict` wants no others.
    """
    symbols = sorted(str(symbol) for symbol in label["symbols"])
    lines = [[cell.strip() for cell in line.split(",")] for line in text.split("\n")]
    lines = [line for line in lines if line != [""]]
    # A row with a cell too many may have the right set of symbols; sorted lists tell it apart.
    rows = [line for line in lines if sorted(line) == symbols][: len(symbols)]
    first = label.get("first_row")
    right = is_latin(rows, symbols) and first in (None, rows[0])
    return {"answer": float(right), "answer_strict": float(right and rows == lines)}


def score_sudoku(text: str, given: Mapping[str, Any], label: Any) -> Scores:
    """Scores a sudoku of side 4; None for other sides.

    `answer`: the digits, of lines with four, solve the puzzle. `answer_strict`: nothing else is
    written. `answer_label`: they are the stored solution; some puzzles of v2 have several.
    """
    puzzle = str(given.get("sudoku", given.get("puzzle", ""))).split()
    if [len(line) for line in puzzle] != [4, 4, 4, 4]:
        return dict.fromkeys(("answer", "answer_strict", "answer_label"))
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rows = ["".join(re.findall("[0-9]", line)) for line in lines]
    rows = [row for row in rows if len(row) == 4]
    solved = tuple(tuple(map(int, row)) for row in rows) in sudoku_grids()
    keeps = [a in ("0", "_", b) for a, b in zip("".join(puzzle), "".join(rows), strict=False)]
    right = solved and all(keeps)
    return {
        "answer": float(right),
        "answer_strict": float(right and rows == lines),
        "answer_label": float(rows == str(label).split()),
    }


def score_sentence(text: str, given: Mapping[str, Any], label: Any) -> Scores:
    """Scores a sentence made of words: `answer` is `included` times `grammar`.

    `included` wants whole words; `included_substring` is upstream's.
    """
    words = [str(word) for word in label["words"]]
    included, checked = float(includes(text, words)), grammar(text)
    return {
        "answer": product(included, checked),
        "included": included,
        "included_substring": float(all(word in text for word in words)),
        "grammar": checked,
    }


def score_summary(text: str, given: Mapping[str, Any], label: Any) -> Scores:
    """Scores a summary: `answer` is ROUGE-L times `grammar`."""
    overlap, checked = rouge(text, str(label["summary"])), grammar(text)
    return {"answer": product(overlap["rougeL"], checked), **overlap, "grammar": checked}


def score_paraphrase(text: str, given: Mapping[str, Any], label: Any) -> Scores:
    """Scores a paraphrase by `inverse_bleu`, one minus BLEU against the sentence, and `grammar`.

    `answer`, upstream's product of both with BERTScore, is None: BERTScore needs a model.
    """
    same = bleu(text, str(label["text"]))
    inverse = None if same is None else float(bool(text.strip())) * (1 - same)
    return {"answer": None, "inverse_bleu": inverse, "grammar": grammar(text)}


SCORERS: Mapping[str, Scorer] = {
    "list_match_score": list_scorer(is_label),
    "list_shuffle_score": list_scorer(is_shuffled, "input"),
    "list_random_insert_score": list_scorer(
        lambda items, label: is_edited(items, label["input"], 0, label["word"]), "input", "word"
    ),
    "list_random_remove_score": list_scorer(
        lambda items, label: is_edited(items, label["input"], 1, ""), "input"
    ),
    "list_random_replace_score": list_scorer(
        lambda items, label: is_edited(items, label["input"], 1, label["word"]), "input", "word"
    ),
    "latin_square_score": Scorer(score_latin, ("symbols",)),
    "sudoku_score": Scorer(score_sudoku),
    "sentence_to_words_score": Scorer(score_sentence, ("words",)),
    "summary_score": Scorer(score_summary, ("summary",)),
    "paraphrase_score": Scorer(score_paraphrase, ("text",)),
}

UNKNOWN = Scorer(lambda text, given, label: {"answer": None})
"""For scorers that are not known here."""

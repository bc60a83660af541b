"""Scorers of ParallelBench's answers, by upstream's names: written anew, with upstream's scores."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.tasks.text_scores import bert_score, bleu, grammar, product, rouge

ScoresByName = Mapping[str, float | None]


class Scorer(NamedTuple):
    """Scores a text, given the inputs of the prompt and the label, which has the fields `needs`."""

    score: Callable[[str, Mapping[str, Any], Any], ScoresByName]
    needs: tuple[str, ...] = ()


def official_items(text: str) -> list[str]:
    """Reads the items after the last `[` up to the next `]`, split at commas, as upstream does.

    Double quotes and spaces around an item are removed; other quotes, tabs and line breaks stay.
    """
    inner = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return [item.strip(' "') for item in inner.split(",") if item.strip()]


def strict_items(text: str) -> list[str] | None:
    """Reads the items if the list is written exactly as `["A", "B"]`, otherwise returns None."""
    _, opened, rest = text.rpartition("[")
    inner, closed, _ = rest.partition("]")
    items = inner.split(", ")
    is_quoted = all(item[:1] == item[-1:] == '"' and '"' not in item[1:-1] for item in items)
    return [item[1:-1] for item in items] if opened and closed and is_quoted else None


def is_label(items: list[str], label: Any) -> bool:
    """Says whether the items are the items of the label, in order."""
    return items == (official_items(label) if isinstance(label, str) else list(label))


def is_shuffled(items: list[str], label: Any) -> bool:
    """Says whether the items are the given items in another order."""
    return sorted(items) == sorted(label["input"]) and items != label["input"]


def is_inserted(items: list[str], label: Any) -> bool:
    """Says whether the items less the first occurrence of each new word are the given items."""
    words = label["word"]
    if words is None:
        return _lacks(label["input"], items, label.get("n_words", 1))
    rest = list(items)
    for word in [words] if isinstance(words, str) else words:
        if word not in rest:
            return False
        rest.remove(word)
    return rest == list(label["input"])


def is_removed(items: list[str], label: Any) -> bool:
    """Says whether the items are the given items without one item, or without `n_words`."""
    return _lacks(items, label["input"], label.get("n_words", 1))


def is_replaced(items: list[str], label: Any) -> bool:
    """Says whether the items are the given items with the word at its first index in `items`.

    If the label has no word, any other words may replace one item, or `n_words` items.
    """
    given, word = list(label["input"]), label["word"]
    if len(items) != len(given):
        return False
    if word is None:
        changed = [a for a, b in zip(items, given, strict=True) if a != b]
        num_words: int = label.get("n_words", 1)
        return len(changed) == num_words
    at = items.index(word) if word in items else 0
    return items == [*given[:at], word, *given[at + 1 :]]


def _lacks(items: list[str], given: list[str], count: int) -> bool:
    """Says whether the items are the given items less the first of each of `count` names.

    A name that is still among the items is not missing, even if it was given twice.
    """
    missing, rest = set(given) - set(items), list(given)
    for name in missing:
        rest.remove(name)
    return len(missing) == count and items == rest


def list_scorer(is_right: Callable[[list[str], Any], bool], *needs: str) -> Scorer:
    """Returns the scorer of a list: `answer` is upstream's, `answer_strict` wants exact form."""

    def score(text: str, inputs: Mapping[str, Any], label: Any) -> ScoresByName:
        strict = strict_items(text)
        return {
            "answer": float(is_right(official_items(text), label)),
            "answer_strict": float(strict is not None and is_right(strict, label)),
        }

    return Scorer(score, needs)


def score_latin(text: str, given: Mapping[str, Any], label: Any) -> ScoresByName:
    """Scores a Latin square: every row and column has each symbol once.

    Rows are the first lines with the right set of symbols, columns end with the shortest row, and a
    `first_row` of the label equals the first row, cell by cell.
    """
    symbols = set(label["symbols"])
    lines = ([cell.strip() for cell in line.split(",")] for line in text.split("\n"))
    rows = [line for line in lines if set(line) == symbols][: len(symbols)]
    columns = zip(*rows, strict=False)
    right = len(rows) == len(symbols) and all(set(column) == symbols for column in columns)
    return {"answer": float(right and label.get("first_row") in (None, rows[0]))}


def score_sudoku(text: str, given: Mapping[str, Any], label: Any) -> ScoresByName:
    """Scores a sudoku of side 4; None for other sides.

    `answer`: the lines with four digits are the stored solution. `answer_strict`: nothing else is
    written. `any_solution`, which is not upstream's: these lines solve the puzzle. Some puzzles of
    v2 have several solutions, of which one is stored.
    """
    puzzle = str(given.get("sudoku", given.get("puzzle", ""))).split()
    if [len(line) for line in puzzle] != [4, 4, 4, 4]:
        return dict.fromkeys(("answer", "answer_strict", "any_solution"))
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rows = ["".join(re.findall("[0-9]", line)) for line in lines]
    rows = [row for row in rows if len(row) == 4]
    stored = str(label).split()
    return {
        "answer": float(rows == stored),
        "answer_strict": float(lines == stored),
        "any_solution": float(len(rows) == 4 and solves(rows, puzzle)),
    }


def solves(rows: Sequence[str], puzzle: Sequence[str]) -> bool:
    """Says whether four rows of digits solve a sudoku of side 4; its open cells are `0` or `_`."""
    columns = map("".join, zip(*rows, strict=True))
    boxes = (rows[i][j : j + 2] + rows[i + 1][j : j + 2] for i in (0, 2) for j in (0, 2))
    is_full = all(sorted(line) == list("1234") for line in (*rows, *columns, *boxes))
    cells = zip("".join(puzzle), "".join(rows), strict=True)
    return is_full and all(given in ("0", "_", cell) for given, cell in cells)


def score_sentence(text: str, given: Mapping[str, Any], label: Any) -> ScoresByName:
    """Scores a sentence made of words: `answer` is `included` times `grammar`.

    `included` wants each word as a part of the text, such as `boat` in `boats`.
    """
    included = float(all(str(word) in text for word in label["words"]))
    return _score_with_grammar(text, included) | {"included": included}


def score_summary(text: str, given: Mapping[str, Any], label: Any) -> ScoresByName:
    """Scores a summary: `answer` is ROUGE-L times `grammar`."""
    overlap = rouge(text, str(label["summary"]))
    return {**_score_with_grammar(text, overlap["rougeL"]), **overlap}


def score_paraphrase(text: str, given: Mapping[str, Any], label: Any) -> ScoresByName:
    """Scores a paraphrase: `answer` is `inverse_bleu` times `bertscore` times `grammar`.

    `inverse_bleu` is one minus BLEU against the sentence; both are 0 if there is no text.
    """
    sentence, is_text = str(label["text"]), bool(text.strip())
    overlap = bleu(text, sentence)
    inverse = None if overlap is None else is_text * (1 - overlap)
    alike = bert_score(text.strip(), sentence) if is_text else 0.0
    return _score_with_grammar(text, inverse, alike) | {"inverse_bleu": inverse, "bertscore": alike}


def _score_with_grammar(text: str, *factors: float | None) -> dict[str, float | None]:
    """Returns the scores of a text that is also judged by its grammar.

    `answer` is the product of `grammar`, which is LanguageTool's, with the other factors.
    """
    judged = grammar(text)
    return {"answer": product(*factors, judged), "grammar": judged}


SCORERS: Mapping[str, Scorer] = {
    "list_match_score": list_scorer(is_label),
    "list_shuffle_score": list_scorer(is_shuffled, "input"),
    "list_random_insert_score": list_scorer(is_inserted, "input", "word"),
    "list_random_remove_score": list_scorer(is_removed, "input"),
    "list_random_replace_score": list_scorer(is_replaced, "input", "word"),
    "latin_square_score": Scorer(score_latin, ("symbols",)),
    "sudoku_score": Scorer(score_sudoku),
    "sentence_to_words_score": Scorer(score_sentence, ("words",)),
    "summary_score": Scorer(score_summary, ("summary",)),
    "paraphrase_score": Scorer(score_paraphrase, ("text",)),
}

UNKNOWN = Scorer(lambda text, inputs, label: {"answer": None})
"""For scorers that are not known here."""

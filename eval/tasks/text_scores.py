"""Scores of free text by optional packages, offline; None where the package is not installed.

The packages come with the extra `eval-text`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harper import Linter

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_OF_STYLE = ("Enhancement", "Readability", "Redundancy", "Style")


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case; an apostrophe inside a word belongs to it."""
    return [word.casefold() for word in _WORD.findall(text)]


def includes(text: str, words: Sequence[str]) -> bool:
    """Says whether a text has every word as a whole word, in any case; a word can be a phrase.

    Inflected forms do not count: `boats` does not include `boat`, but `boat-house` and `boat.` do.
    A word asked for twice must come twice.
    """
    spaced = _spaced(text)
    wanted = Counter(_spaced(word) for word in words)
    return all(spaced.count(word) >= count for word, count in wanted.items())


def grammar(text: str) -> float | None:
    """Returns 1 if a grammar checker finds no error, 0 if it finds one or there is no text.

    Remarks on style, such as a missing serial comma, do not count, and capitalised words that the
    checker does not know count as names. American English. The test is lenient: 95 % of 1000
    sentences of GSM8K's questions pass, and 66 % of the same sentences with their words shuffled.

    Source: Harper 2.13, https://github.com/Automattic/harper, by the package `harper-py` 0.2.
    Differs: ParallelBench uses LanguageTool, whose rules differ, so that rates do not compare.
    """
    linter = _linter()
    if linter is None:
        return None
    if not text.strip():
        return 0.0
    lints = linter.lint(text.strip(), language="plaintext")
    errors = [lint for lint in lints if lint.lint_kind not in _OF_STYLE]
    return float(all(e.lint_kind == "Spelling" and e.problem_text[:1].isupper() for e in errors))


def rouge(text: str, reference: str) -> Mapping[str, float | None]:
    """Returns the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, words stemmed.

    Source: Lin 2004, "ROUGE", https://aclanthology.org/W04-1013, by the package `rouge-score`.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        return dict.fromkeys(("rouge1", "rouge2", "rougeL"))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    return {name: float(s.fmeasure) for name, s in scorer.score(reference, text).items()}


def bleu(text: str, reference: str) -> float | None:
    """Returns BLEU-4 of a text against one reference, not smoothed: 0 without a common 4-gram.

    Source: Papineni et al. 2002, "BLEU", https://aclanthology.org/P02-1040, by the package
    `sacrebleu`, tokenization 13a.
    """
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        return None
    # A corpus of one text, because the function for sentences smooths, and warns.
    score = corpus_bleu([text], [[reference]], smooth_method="none")
    return float(min(score.score / 100, 1.0))


def product(*scores: float | None) -> float | None:
    """Returns the product; None if a factor is None, even if another one is 0."""
    factors = [score for score in scores if score is not None]
    return math.prod(factors, start=1.0) if len(factors) == len(scores) else None


def _spaced(text: str) -> str:
    # Neighbouring words share no space, so that `str.count`, which skips overlaps, finds each.
    return "".join(f" {word} " for word in words_of(text))


@cache
def _linter() -> "Linter | None":
    # The dictionary of the linter takes most of a second to load.
    try:
        from harper import Linter
    except ImportError:
        return None
    return Linter()

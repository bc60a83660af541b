"""Scores of free text by optional packages; None where the package is not installed.

`eval-text` is the extra with ROUGE and BLEU, which run offline; `eval-official` the extra
with LanguageTool and BERTScore, which download a server and weights the first time.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_score import BERTScorer
    from language_tool_python import LanguageTool


def grammar(text: str) -> float | None:
    """Returns 1 if LanguageTool finds nothing in American English, 0 if it does or no text is left.

    Source: LanguageTool, https://languagetool.org, by the package `language-tool-python` with the
    configuration of ParallelBench.

    Raises:
        ValueError: If the server of LanguageTool does not start.
    """
    tool = _language_tool()
    if tool is None:
        return None
    text = text.strip()
    return float(bool(text) and not tool.check(text))


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


def bert_score(text: str, reference: str) -> float | None:
    """Returns the F-measure of BERTScore by layer 17 of `roberta-large`, without rescaling.

    Source: Zhang et al. 2020, "BERTScore", https://arxiv.org/abs/1904.09675, by the package
    `bert-score` with its defaults for English.

    Raises:
        ValueError: If the weights are not found.
    """
    scorer = _bert_scorer()
    if scorer is None:
        return None
    *_, f_measure = scorer.score([text], [reference])
    return min(max(float(f_measure), 0.0), 1.0)


def product(*scores: float | None) -> float | None:
    """Returns the product; None if a factor is None, even if another one is 0."""
    factors = [score for score in scores if score is not None]
    return math.prod(factors, start=1.0) if len(factors) == len(scores) else None


@cache
def _language_tool() -> "LanguageTool | None":
    # A server in Java, which the package ends with the process.
    try:
        from language_tool_python import LanguageTool
        from language_tool_python.exceptions import LanguageToolError
    except ImportError:
        return None
    try:
        return LanguageTool("en-US", config={"maxCheckThreads": 1, "maxSpellingSuggestions": 1})
    except (ImportError, OSError, SystemError, LanguageToolError) as error:
        raise ValueError(
            f"LanguageTool must start, got: {error}. It needs Java 17 or later, and the network "
            "the first time; without the package language-tool-python its scores are left out."
        ) from error


@cache
def _bert_scorer() -> "BERTScorer | None":
    try:
        from bert_score import BERTScorer
    except ImportError:
        return None
    try:
        return BERTScorer(lang="en")
    except OSError as error:
        raise ValueError(
            f"BERTScore must have the weights of roberta-large, got: {error}. It needs the network "
            "the first time; without the package bert-score its score is left out."
        ) from error

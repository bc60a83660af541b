"""Checks of tasks before anything is decoded; messages name the example."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

from eval.tasks.base import Example, Task
from samplers.checks import shown

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    re.error,
)
"""Errors that a sampler, a scorer or a model raises when its code is wrong about one example.

Anything else, such as an interrupt or a full disk, ends a run; its records are kept.
"""

_TURN = ("role", "content")
_TURNS = "text, or a list of chat turns such as {'role': 'user', 'content': '...'}"
_PARTS: Mapping[str, tuple[Any, str]] = {
    "id": (str, "text"),
    "target": (str, "text"),
    "template": (str, "text with blanks such as [MASK]"),
    "meta": (Mapping, "a mapping (write Example(prompt, target, meta, id=...))"),
    "prompt": (str | list, _TURNS),
}
"""By part of an example its type, and the type in words."""


def require_examples(address: str, examples: Sequence[object]) -> None:
    """Raises ValueError if an example of a task is no `Example`, or a part has a wrong type."""
    for number, example in enumerate(examples):
        if not isinstance(example, Example):
            raise ValueError(
                f"{address}: each example must be an Example, got {shown(example)} at {number}."
            )
        for part, (kind, wanted) in _PARTS.items():
            value = getattr(example, part)
            if not isinstance(value, kind) or (part == "prompt" and not is_prompt(value)):
                raise ValueError(
                    f"{address}: the {part} of the example {example.id!r} must be {wanted}, got "
                    f"{shown(value)}."
                )
        texts = (example.id, example.target, *(turn["content"] for turn in example.turns()))
        for text in texts:
            # Half a surrogate pair, to which Python decodes a wrong byte, cannot be recorded.
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise ValueError(
                    f"{address}: each text must be one that UTF-8 can write, got {shown(text)} in "
                    f"the example {example.id!r}; repair or remove it."
                )


def require_target_score(address: str, task: Task, example: Example) -> None:
    """Checks that a task scores an example's target, with 1 if `Task.scores_own_target`.

    Raises ValueError if the scorer raises, or does not return the scores that a task must.
    """
    where = f"the target {shown(example.target)} of the example {example.id!r}"
    try:
        scores = task.score(example, example.target)
    except FAILURES as error:
        place = extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{address}: score must not raise, got {type(error).__name__}: {error} "
            f"({Path(place.filename).name}, line {place.lineno}) for {where}."
        ) from error
    try:
        score = checked_scores(scores, task.primary)[task.primary]
    except ValueError as error:
        raise ValueError(f"{address}: {error} It was asked for {where}.") from None
    if task.scores_own_target and (score is None or not math.isclose(score, 1.0)):
        raise ValueError(
            f"{address}: the task's own target must score 1 in {task.primary!r}, got {score} for "
            f"{where}; correct score or the target. If good answers may score less, the task must "
            "say scores_own_target = False."
        )


def checked_scores(scores: object, primary: str) -> dict[str, float | None]:
    """Returns the scores of `Task.score` as records hold them.

    Raises:
        ValueError: If `scores` is no mapping, lacks `primary`, or has a score outside [0, 1].
    """
    if not isinstance(scores, Mapping):
        raise ValueError(
            f"score must return a mapping such as {{{primary!r}: 1.0}}, got {scores!r}."
        )
    if primary not in scores:
        raise ValueError(
            f"score must return the primary score {primary!r} among others, got "
            f"{', '.join(map(repr, scores)) or 'none'}."
        )
    return {name: _checked_score(name, score) for name, score in scores.items()}


def _checked_score(name: str, score: Any) -> float | None:
    if score is None:
        return None
    try:
        # Text is a mistake even if it looks like a number.
        number = math.nan if isinstance(score, str) else float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError(
            f"Scores must be numbers in [0, 1], True, False or None, got {name!r}: {shown(score)}."
        )
    return number


def is_prompt(prompt: Any) -> bool:
    """Says whether a value is a prompt: text, or chat turns with the texts role and content."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str) and bool(prompt)
    texts = [turn.get(n) if isinstance(turn, Mapping) else None for turn in prompt for n in _TURN]
    return bool(texts) and all(isinstance(text, str) for text in texts)

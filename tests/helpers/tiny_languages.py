"""Texts of the tokens of tiny models, and random languages over them."""

import random
import re
from collections.abc import Sequence
from functools import cache

import torch

from dllm_decode.core.automaton import Automaton
from dllm_decode.core.model import MaskPredictor
from dllm_decode.text.constraints import Regex, Vocabulary, compile_constraint

_LETTERS = "abcyesno01-"


@cache
def vocabulary_of(model: MaskPredictor) -> tuple[list[str | None], Vocabulary]:
    draw, letters = random.Random(0), [*dict.fromkeys('abcyesno0123456789-{}":, truefalgm[]')]
    special = {*model.eos_ids, model.mask_id, *model.banned_ids}
    texts: list[str | None] = []
    for token in range(model.vocab_size):
        if token in special:
            texts.append(None)
        elif letters:
            texts.append(letters.pop())
        else:
            texts.append("".join(draw.choices('ab,c0123-{}":yesnotruefalm', k=draw.randint(1, 3))))
    encoded = [None if text is None else text.encode() for text in texts]
    return texts, Vocabulary.of(encoded, encoded, model.eos_ids)


def automaton_of(model: MaskPredictor, pattern: str) -> Automaton:
    return compile_constraint(Regex(pattern), vocabulary_of(model)[1])


def text_of(model: MaskPredictor, tokens: Sequence[int]) -> str:
    texts, _ = vocabulary_of(model)
    parts = []
    for token in tokens:
        if token in model.eos_ids:
            break
        text = texts[token]
        parts.append(text)
    return "".join(parts)


def check(model: MaskPredictor, patterns: Sequence[str | None], tokens: torch.Tensor) -> None:
    for pattern, row in zip(patterns, tokens.tolist(), strict=True):
        if pattern is not None:
            text = text_of(model, row)
            assert re.fullmatch(pattern, text), (pattern, text)


def compiled(model: MaskPredictor, patterns: Sequence[str | None]) -> list[Automaton | None]:
    return [None if pattern is None else automaton_of(model, pattern) for pattern in patterns]


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Draws a regular expression; each of its texts can be written with the tokens."""
    kind = rng.choice(("text", "class", "sequence", "either", "repeated", "optional"))
    if depth == 0 or kind == "text":
        return "".join(rng.choices(_LETTERS, k=rng.randint(1, 4)))
    if kind == "class":
        return f"[{''.join(rng.sample(_LETTERS[:-1], rng.randint(1, 5)))}]"
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))]
    if kind == "sequence":
        return "".join(parts)
    if kind == "either":
        return f"(?:{'|'.join(parts)})"
    if kind == "optional":
        return f"(?:{parts[0]})?{parts[1]}"
    return f"(?:{parts[0]}){rng.choice(('*', '+', '{2}', '{1,3}', '{0,5}'))}"

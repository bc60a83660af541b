"""Texts with blanks: `[MASK]` is one open token, `[MASK:12]` twelve, `[yes|no]` a choice."""

import re
from typing import Any, NamedTuple

from dllm_decode.core.model import MaskPredictor
from dllm_decode.text.texts import Tokenizer, text_ids, warn_of_unknown_words
from samplers.checks import shown

_BLANK = re.compile(r" ?\[MASK(?::(\d+))?\]")
_CHOICE = re.compile(r"( ?)\[([^\[\]|]*(?:\|[^\[\]|]*)+)\]")
_MOST = 2**20


class Choice(NamedTuple):
    """A place of a text where one of some answers is to be read.

    Attributes:
        texts: The answers, as they are written.
        token_ids: The tokens of each.
    """

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]

    def masked(self, mask_id: int) -> list[int]:
        """Returns the tokens of the place while another one is read."""
        return [mask_id] * max(map(len, self.token_ids))


def template_ids(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[int]:
    """Returns the token ids of a text with blanks, the mask id where it is open.

    The tokenizer's own mask token is a blank of one token, too. One space before a `[MASK]` is part
    of the blank, since most tokenizers write a space into the token of the word that follows it.

    Raises:
        ValueError: If there is no blank, or a blank is too long.
    """
    if not isinstance(text, str):
        raise ValueError(f"A template must be a text with blanks such as [MASK:5], got {text!r}.")
    # Texts, and between them the lengths of blanks.
    first, *rest = _BLANK.split(text)
    found = _given(tokenizer, first)
    for length, words in zip(rest[::2], rest[1::2], strict=True):
        found += [model.mask_id] * _length_of(length) + _given(tokenizer, words)
    if model.mask_id not in found:
        raise ValueError(
            f"A template must have a blank, such as [MASK:5] for five tokens, got {text!r}."
        )
    return found


def _given(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the token ids of given words; warns of those that the tokenizer does not know."""
    found = text_ids(tokenizer, text)
    warn_of_unknown_words(tokenizer, [text], [found], stacklevel=7)
    return found


def _length_of(digits: str | None) -> int:
    # Python reads no integer of more than 4,300 digits.
    length = 1 if digits is None else int(digits) if len(digits) <= 100 else _MOST + 1
    if not 1 <= length <= _MOST:
        raise ValueError(
            f"A blank must have between 1 and {_MOST} tokens, got {shown(f'[MASK:{digits}]')}."
        )
    return length


def pieces_of(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[list[int] | Choice]:
    """Returns the parts of a text with choices: token ids, with blanks among them, and choices.

    One space before a choice is part of each of its answers.

    Raises:
        ValueError: If there is no choice, or the answers of one do not differ.
    """
    if not isinstance(text, str):
        raise ValueError(f"A read must be a text with choices such as [yes|no], got {shown(text)}.")
    # Texts, and between them the space before a choice and its answers.
    first, *rest = _CHOICE.split(text)
    if not rest:
        raise ValueError(f"A read must have a choice, such as [yes|no], got {text!r}.")
    found: list[list[int] | Choice] = [_with_blanks(tokenizer, first, model)]
    for space, answers, words in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        choice = _choice(tokenizer, space, answers)
        found += [choice, _with_blanks(tokenizer, words, model)]
    return found


def _with_blanks(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[int]:
    has_blank = _BLANK.search(text) is not None
    return template_ids(tokenizer, text, model) if has_blank else _given(tokenizer, text)


def _choice(tokenizer: Tokenizer, space: str, answers: str) -> Choice:
    texts = tuple(answers.split("|"))
    token_ids = tuple(tuple(_given(tokenizer, space + text)) for text in texts)
    if not all(map(str.strip, texts)) or not all(token_ids):
        raise ValueError(f"Each answer of a choice must have at least one token, got [{answers}].")
    if len(set(token_ids)) < len(token_ids):
        raise ValueError(f"The answers of a choice must differ in their tokens, got [{answers}].")
    return Choice(texts, token_ids)


def start_ids(tokenizer: Any) -> list[int]:
    """Returns the prompt of a text without one: the token that texts begin with.

    Raises:
        ValueError: If the tokenizer has no such token.
    """
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [token]
    raise ValueError(
        "An input must be given, since the tokenizer has no token that texts begin with."
    )

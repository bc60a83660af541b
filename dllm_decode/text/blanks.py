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
    """A place of a text at which the probabilities of some answers are read.

    Attributes:
        texts: The answers, as they are written.
        token_ids: The tokens of each answer.
    """

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]

    def masked(self, mask_id: int) -> list[int]:
        """Returns the masks of the place, for use while another place is read."""
        return [mask_id] * max(map(len, self.token_ids))


def template_ids(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[int]:
    """Returns the token ids of a text with blanks, the mask id where the text is open.

    The tokenizer's own mask token is a blank of one token, too. One space before a `[MASK]` is part
    of the blank, since most tokenizers write a space into the token of the word that follows it.

    Raises:
        ValueError: If there is no blank, or a blank is too long.
    """
    if not isinstance(text, str):
        raise ValueError(f"A template must be a text with blanks such as [MASK:5], got {text!r}.")
    # Texts alternate with the lengths of the blanks between them.
    first, *rest = _BLANK.split(text)
    token_ids = _given(tokenizer, first)
    for length, words in zip(rest[::2], rest[1::2], strict=True):
        token_ids += [model.mask_id] * _length_of(length) + _given(tokenizer, words)
    if model.mask_id not in token_ids:
        raise ValueError(
            f"A template must have a blank, such as [MASK:5] for five tokens, got {text!r}."
        )
    return token_ids


def _given(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the token ids of given words; warns of words that the tokenizer does not know."""
    token_ids = text_ids(tokenizer, text)
    warn_of_unknown_words(tokenizer, [text], [token_ids], stacklevel=7)
    return token_ids


def _length_of(digits: str | None) -> int:
    # Python reads no integer of more than 4,300 digits.
    length = 1 if digits is None else int(digits) if len(digits) <= 100 else _MOST + 1
    if not 1 <= length <= _MOST:
        raise ValueError(
            f"A blank must have between 1 and {_MOST} tokens, got {shown(f'[MASK:{digits}]')}."
        )
    return length


def pieces_of(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[list[int] | Choice]:
    """Returns the parts of a text with choices: token ids, which may be blanks, and choices.

    One space before a choice is part of each of its answers.

    Raises:
        ValueError: If there is no choice, or a choice has answers that do not differ.
    """
    if not isinstance(text, str):
        raise ValueError(f"A read must be a text with choices such as [yes|no], got {shown(text)}.")
    # Texts alternate with two strings for each choice: the space before it, and its answers.
    first, *rest = _CHOICE.split(text)
    if not rest:
        raise ValueError(f"A read must have a choice, such as [yes|no], got {text!r}.")
    pieces: list[list[int] | Choice] = [_with_blanks(tokenizer, first, model)]
    for space, answers, words in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        choice = _choice(tokenizer, space, answers)
        pieces += [choice, _with_blanks(tokenizer, words, model)]
    return pieces


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
    """Returns the prompt for a text that has none: the BOS token, otherwise the EOS token.

    Raises:
        ValueError: If the tokenizer has neither token.
    """
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [token]
    raise ValueError(
        "An input must be given, since the tokenizer has no token that texts begin with."
    )

"""The syntax of texts with blanks, `[MASK:12]`, and choices, `[yes|no]`; loads no torch."""

import re

from samplers.checks import shown

_BLANK = re.compile(r" ?\[MASK(?::(\d+))?\]")
_CHOICE = re.compile(r"( ?)\[([^\[\]|]*(?:\|[^\[\]|]*)+)\]")
_MAX_BLANK_LENGTH = 2**20


def split_blanks(text: str) -> tuple[list[str], list[int]]:
    """Returns the given parts of a text, and the lengths of the blanks between them.

    One space before a `[MASK]` is part of the blank, since most tokenizers write a space into the
    token of the word that follows it.

    Raises:
        ValueError: If a blank is too long, or empty.
    """
    if not isinstance(text, str):
        raise ValueError(f"A template must be a text with blanks such as [MASK:5], got {text!r}.")
    parts = _BLANK.split(text)
    return parts[::2], [_length_of(digits) for digits in parts[1::2]]


def _length_of(digits: str | None) -> int:
    # Python reads no integer of more than 4,300 digits.
    length = 1 if digits is None else int(digits) if len(digits) <= 100 else _MAX_BLANK_LENGTH + 1
    if not 1 <= length <= _MAX_BLANK_LENGTH:
        raise ValueError(
            f"A blank must have between 1 and {_MAX_BLANK_LENGTH} tokens, "
            f"got {shown(f'[MASK:{digits}]')}."
        )
    return length


def split_choices(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the texts around the choices, and each choice: the space before it, and its answers.

    Raises:
        ValueError: If there is no choice.
    """
    if not isinstance(text, str):
        raise ValueError(f"A read must be a text with choices such as [yes|no], got {shown(text)}.")
    parts = _CHOICE.split(text)
    if len(parts) == 1:
        raise ValueError(f"A read must have a choice, such as [yes|no], got {text!r}.")
    return parts[::3], list(zip(parts[1::3], parts[2::3], strict=True))

"""The syntax of regular expressions that constraints may have."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from samplers.checks import shown

_PART = re.compile(
    r"\\(?:[pPxuU]\{[^}]*\}|[pP].|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)"
    r"|\(\?(?:<?[=!]|P=)|\[\^?\]?|.",
    re.DOTALL,
)

_REFUSED = {
    "(?=": "a look-ahead",
    "(?!": "a look-ahead",
    "(?<=": "a look-behind",
    "(?<!": "a look-behind",
    "(?P=": "a back reference",
    r"\k": "a back reference",
    **{rf"\{digit}": "a back reference" for digit in "123456789"},
    **{rf"\{letter}": "an anchor" for letter in "bBAzZG<>"},
    "^": "an anchor",
    "$": "an anchor",
}

# The characters that a JSON text need not escape, as a class.
_KEPT = r'[^"\\\x00-\x1F]'


class _Part(NamedTuple):
    """A part of an expression: a character, an escape, or the beginning of a group or class."""

    text: str
    is_in_class: bool


def whole_text(pattern: str, *, owner: str) -> str:
    """Returns an expression without the anchors at its ends; `owner` names it in messages.

    Raises:
        ValueError: If it has parts that no automaton can have, or unbalanced parentheses.
    """
    pattern = pattern.removeprefix("^")
    if re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern):
        pattern = pattern[:-1]
    depth = 0
    for part in _parts(pattern):
        if part.is_in_class:
            continue
        if part.text in _REFUSED:
            raise ValueError(
                f"{owner} must have no look-around, back references or anchors in its middle, got "
                f"{_REFUSED[part.text]}, {part.text!r}. A constraint is matched against the whole "
                "answer; write the alternatives out."
            )
        depth += part.text.startswith("(") - (part.text == ")")
        if depth < 0:
            break
    if depth:
        raise ValueError(f"{owner} must have a partner for each parenthesis, got {shown(pattern)}.")
    return pattern


def without_escaped(pattern: str) -> str:
    """Returns an expression of the same texts, except those with a character that JSON escapes."""
    texts, is_in_class = [], False
    for part in _parts(pattern):
        text = part.text
        if is_in_class:
            is_in_class = part.is_in_class
            text += "" if is_in_class else f"&&{_KEPT}]"
        elif text.startswith("["):
            is_in_class, text = True, f"[{text}"
        elif text == ".":
            text = _KEPT
        # A character that JSON escapes, itself or escaped; or an escape that may be one.
        elif text[-1] in '"\\' or text[-1] < " " or (text[0] == "\\" and text[1].isalpha()):
            text = f"[{text}&&{_KEPT}]"
        texts.append(text)
    return "".join(texts)


def literal(text: str) -> str:
    """Returns an expression that matches one text."""
    return re.sub(r"([\\.+*?()|\[\]{}^$#&\-~])", r"\\\1", text)


def _parts(pattern: str) -> Iterator[_Part]:
    """Yields the parts of an expression in order; the brackets of a class are not in the class."""
    depth = 0
    for match in _PART.finditer(pattern):
        text = match[0]
        if text == "]" and depth:
            depth -= 1
        # A bracket directly after the opening one is a character, such as "]" in "[]a]".
        yield _Part(text, depth > 0)
        if text.startswith("["):
            depth += 1

"""Texts that can be written in UTF-8: no others can be encoded, recorded or printed."""

from argparse import ArgumentParser
from collections.abc import Iterable


def is_utf8(text: str) -> bool:
    """Says whether a text holds no half of a surrogate pair, as bytes of other encodings become."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def require_utf8(parser: ArgumentParser, words: Iterable[str]) -> None:
    """Ends the process, as argparse does, if a word of the command line is in another encoding."""
    for word in words:
        if not is_utf8(word):
            parser.error(f"every argument must be text in UTF-8, got {word!a}")

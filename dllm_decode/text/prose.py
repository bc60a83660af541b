"""Tokens of an answer as text that is sent piece by piece."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, runtime_checkable

from dllm_decode.core.stopping import cut_at

UNFINISHED = "\ufffd"
"""The character that a tokenizer writes for a part of one."""


@runtime_checkable
class _Decoder(Protocol):
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...


@dataclass
class Prose:
    """The text of one answer, of which each character is sent once.

    Attributes:
        tokenizer: Turns ids into text.
        stop_strings: Texts that end the answer, and are not part of it.
        hidden_ids: Tokens that are not part of the text; `None`: all special tokens.
    """

    tokenizer: _Decoder
    stop_strings: Sequence[str]
    hidden_ids: Collection[int] | None = None
    _sent: str = field(default="", init=False)

    def whole(self, tokens: list[int]) -> str:
        """Returns the text of tokens up to the first stop string."""
        kept = self.kept(tokens)
        text, shown = self._decoded(kept), self.tokenizer.decode(kept)
        before = cut_at(shown, self.stop_strings)
        if before == shown or any(string in text for string in self.stop_strings):
            return cut_at(text, self.stop_strings)
        # The string has a special token, so that the text does not contain the string.
        lengths = (len(self.tokenizer.decode(kept[:n])) for n in range(len(kept)))
        num_whole = sum(1 for _ in takewhile(lambda length: length <= len(before), lengths)) - 1
        whole = kept[:num_whole]
        return self._decoded(whole) + before[len(self.tokenizer.decode(whole)) :].rstrip()

    def stops(self, tokens: list[int]) -> bool:
        """Returns True if the text of tokens contains a stop string.

        A stop string may be a special token, which is not part of the text that is sent.
        """
        if not self.stop_strings:
            return False
        texts = (self.tokenizer.decode(tokens), self._decoded(tokens))
        return any(string in text for text in texts for string in self.stop_strings)

    def more(self, tokens: list[int]) -> str:
        """Returns the new text that can be sent, for an answer that begins with `tokens`.

        Incomplete characters, and characters that may begin a stop string, are held back.
        """
        if self.stops(tokens):
            return self.rest(tokens)
        text = self._decoded(tokens).rstrip(UNFINISHED)
        return self._send(text[: len(text) - num_begun(text, self.stop_strings)])

    def rest(self, tokens: list[int]) -> str:
        """Returns the text of an ended answer that was not sent yet."""
        return self._send(self.whole(tokens))

    def kept(self, tokens: list[int]) -> list[int]:
        """Returns the tokens up to the one with which the first stop string is complete."""
        if not self.stops(tokens):
            return tokens
        first = bisect_left(range(len(tokens)), True, key=lambda n: self.stops(tokens[:n]))
        return tokens[:first]

    def _decoded(self, tokens: list[int]) -> str:
        if self.hidden_ids is None:
            return self.tokenizer.decode(tokens, skip_special_tokens=True)
        return self.tokenizer.decode([token for token in tokens if token not in self.hidden_ids])

    def _send(self, text: str) -> str:
        # Some tokenizers change a space before the end once more text follows.
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new


def num_begun(text: str, strings: Sequence[str]) -> int:
    """Counts the characters at the end of a text that may be the beginning of some strings."""
    longest = max((len(string) for string in strings), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-length:]) for string in strings):
            return length
    return 0

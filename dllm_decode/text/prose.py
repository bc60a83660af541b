"""Tokens of an answer as text that is sent piece by piece."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from dllm_decode.core.stopping import cut_at
from dllm_decode.text.texts import Tokenizer

UNFINISHED = "\ufffd"
"""The character that a tokenizer writes for a part of one."""


@dataclass
class Prose:
    """The text of one answer, of which each character is sent once.

    Attributes:
        tokenizer: Turns ids into text.
        stop_strings: Texts that end the answer, and are not part of it.
    """

    tokenizer: Tokenizer
    stop_strings: Sequence[str]
    _sent: str = field(default="", init=False)

    def whole(self, tokens: list[int]) -> str:
        """Returns the text of tokens up to the first stop string."""
        return cut_at(self._decoded(self.kept(tokens)), self.stop_strings)

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
        return self._send(text[: len(text) - self._num_held(text)])

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
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _send(self, text: str) -> str:
        # Some tokenizers change a space before the end once more text follows.
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new

    def _num_held(self, text: str) -> int:
        """Counts the characters at the end that may be the beginning of a stop string."""
        longest = max((len(string) for string in self.stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self.stop_strings):
                return length
        return 0

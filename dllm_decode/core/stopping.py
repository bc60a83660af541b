"""Rules that end a row before its answer is full, in addition to the EOS."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from samplers.checks import shown


@runtime_checkable
class Detokenizer(Protocol):
    """A tokenizer that turns ids into text."""

    def decode(self, token_ids: list[int]) -> str: ...


class StopRule(ABC):
    """Decides after each round whether a row stops."""

    @property
    def reads_tokens(self) -> bool:
        """True if `stops` must be called; otherwise the host need not read the tokens."""
        return True

    @abstractmethod
    def stops(self, tokens: list[int]) -> bool:
        """Returns whether the row stops.

        Args:
            tokens: The beginning of the answer whose tokens never change, before the first EOS.
        """


@dataclass(frozen=True)
class NeverStop(StopRule):
    """Lets a row run until its answer ends or is full."""

    @property
    def reads_tokens(self) -> bool:
        return False

    def stops(self, tokens: list[int]) -> bool:
        return False


@dataclass(frozen=True)
class StopStrings(StopRule):
    """Stops a row as soon as its text contains one of some strings.

    The host reads the tokens after every round, and therefore waits for the device once more.

    Attributes:
        tokenizer: Turns ids into text.
        strings: Texts that end an answer.

    Raises:
        ValueError: If `strings` is a single text, or holds an empty one or something else.
    """

    tokenizer: Detokenizer
    strings: tuple[str, ...]

    def __post_init__(self) -> None:
        is_listed = isinstance(self.strings, Sequence) and not isinstance(self.strings, str)
        if not is_listed or not all(isinstance(string, str) for string in self.strings):
            raise ValueError(f"Stop strings must be a tuple of texts, got {shown(self.strings)}.")
        for string in self.strings:
            if not string:
                raise ValueError("A stop string must have at least one character, got ''.")

    def stops(self, tokens: list[int]) -> bool:
        text = self.tokenizer.decode(tokens)
        return any(string in text for string in self.strings)


def stop_rule(tokenizer: Detokenizer, strings: tuple[str, ...]) -> StopRule:
    """Returns the rule that stops a row at any of some strings; without strings, at none."""
    return StopStrings(tokenizer, strings) if strings else NeverStop()


def cut_at(text: str, strings: Sequence[str]) -> str:
    """Returns the text before the first of some strings."""
    starts = [text.find(string) for string in strings if string in text]
    return text[: min(starts)] if starts else text

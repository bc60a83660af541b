"""When a row stops before its answer is full, beside the EOS that the canvas knows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from dllm_decode.canvas import Block, Canvas


@runtime_checkable
class Detokenizer(Protocol):
    """What is needed of a tokenizer to turn ids into text."""

    def decode(self, token_ids: list[int]) -> str: ...


class StopRule(ABC):
    """Says after each round which rows stop."""

    @abstractmethod
    def stopped(self, canvas: Canvas, block: Block) -> Bool[Tensor, " B"] | None:
        """Returns the rows that stop; `None`: none, and nothing was looked at."""


@dataclass(frozen=True)
class NeverStop(StopRule):
    """Lets every row run until its answer ends or is full."""

    def stopped(self, canvas: Canvas, block: Block) -> Bool[Tensor, " B"] | None:
        return None


@dataclass(frozen=True)
class StopStrings(StopRule):
    """Stops a row once one of some strings stands in its text with no mask before its end.

    The host reads the tokens after every round, which costs an accelerator one wait.

    Attributes:
        tokenizer: Turns ids into text.
        strings: What stops.
        waits_for_block: Whether tokens of the open block may still change, since the sampler
            re-masks; then only finished blocks are read.
    """

    tokenizer: Detokenizer
    strings: tuple[str, ...]
    waits_for_block: bool = False

    def __post_init__(self) -> None:
        for string in self.strings:
            if not string:
                raise ValueError("A stop string must have at least one character, got ''.")

    def stopped(self, canvas: Canvas, block: Block) -> Bool[Tensor, " B"] | None:
        read = prefixes(canvas, block, self.waits_for_block)
        texts = [self.tokenizer.decode(ids) for ids in read]
        found = [any(string in text for string in self.strings) for text in texts]
        return torch.tensor(found, device=canvas.tokens.device)


def prefixes(canvas: Canvas, block: Block, waits_for_block: bool) -> list[list[int]]:
    """Returns each row's answer tokens before its first mask and before its first EOS.

    Args:
        canvas: The rows.
        block: The open block.
        waits_for_block: Whether an unfinished open block is left out.
    """
    answers, leads = canvas.answers().tolist(), canvas.lead.tolist()
    unfinished = (canvas.num_open(block) > 0).tolist()
    ends = {canvas.mask_id, *canvas.eos_ids}
    found = []
    for answer, lead, is_open in zip(answers, leads, unfinished, strict=True):
        last = max(0, block.start - lead) if waits_for_block and is_open else len(answer)
        shown = answer[:last]
        first = next((at for at, token in enumerate(shown) if token in ends), len(shown))
        found.append(shown[:first])
    return found


def cut_at(text: str, strings: Sequence[str]) -> str:
    """Returns a text up to the first of some strings, without it."""
    starts = [text.find(string) for string in strings if string in text]
    return text[: min(starts)] if starts else text

"""A schedule that breaks its contract is named, at the first step that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from toys import HashModel

from dllm_decode import AdaptiveBlocks, BlockSchedule, DecodeOutput, Sequential, decode
from dllm_decode.blocks import Row, block_of
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Opening
from samplers import ConfidenceThreshold, View

PROMPTS = [[1, 2, 3], [4]]


@dataclass(frozen=True)
class Whole(BlockSchedule):
    """Opens all of the answer at once."""

    def window_length(self, block_length: int, answer_length: int) -> int:
        return answer_length

    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return Opening.of_block(row.first, row.end)


class Empty(Whole):
    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return Opening.of_block(row.first, row.first)


class Beyond(Whole):
    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return Opening.of_block(row.first, row.end + 1)


class StuckAtFirst(Whole):
    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return Opening.of_block(row.first, row.first + 4)


class StuckOnceOpened(Whole):
    def narrowed(self, view: View, openings: Sequence[Opening], state: Any) -> tuple[View, Any]:
        return replace(view, eligible=view.eligible & False), state


class Nothing(Whole):
    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return None


class Pair(Whole):
    def opening(self, row: Row, block_length: int, shift: int) -> Any:
        return 0, 4


class OneNumber(Whole):
    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Any:
        return canvas.masked.sum(-1)


class Shares(Whole):
    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Any:
        return canvas.masked.sum(-1, keepdim=True) / 16


class OfOneRow(Whole):
    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Any:
        return canvas.masked.long()[:1]


class Listed(Whole):
    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Any:
        return [[3], [4]]


def run(blocks: BlockSchedule) -> DecodeOutput:
    return decode(
        HashModel(), PROMPTS, ConfidenceThreshold(0.9), blocks=blocks, gen_length=8,
        block_length=4, stop_at_eos=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (Empty(), r"opening of Empty\(.*\) must open at least one unsettled position"),
        (Beyond(), r"opening of Beyond\(.*\) must open .* columns of \[3, 11\) that end after 3"),
        (StuckAtFirst(), r"opening of StuckAtFirst\(.*\) must open .* that end after [78], got"),
        (StuckOnceOpened(), r"^StuckOnceOpened\(.*\) must leave at least one unsettled position"),
        (Nothing(), r"opening of Nothing\(.*\) must return an Opening .*, got None"),
        (Pair(), r"opening of Pair\(.*\) must return an Opening .*, got \(0, 4\) \(tuple\)"),
        (OneNumber(), r"numbers of OneNumber\(.*\) must return Int\[B, N\] .* \(2,\) for 2 rows"),
        (Shares(), r"numbers of Shares\(.*\) must return .* torch\.float32 \(2, 1\) for 2 rows"),
        (OfOneRow(), r"numbers of OfOneRow\(.*\) must return .* \(1, \d+\) for 2 rows"),
        (Listed(), r"numbers of Listed\(.*\) must return .*, got \[\[3\], \[4\]\] \(list\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BlockSchedule) else "",
)  # fmt: skip
def test_a_broken_schedule_is_named(blocks: BlockSchedule, sentence: str) -> None:
    """Once the sampler was blamed, a torch error raised, or None taken for everything."""
    assert run(Whole()).forwards > 1
    with pytest.raises(RuntimeError, match=sentence):
        run(blocks)


def test_an_opening_is_asked_though_the_schedule_declares_nothing() -> None:
    """Once such a schedule decoded as Sequential does, without a word, or was refused."""
    asked = []

    @dataclass(frozen=True)
    class Forgetful(BlockSchedule):
        def opening(self, row: Row, block_length: int, shift: int) -> Opening:
            asked.append((row.first, block_of(row, block_length)))
            return Opening.of_block(*block_of(row, block_length))

    out = run(Forgetful())
    assert torch.equal(out.tokens, run(Sequential()).tokens)
    assert set(asked) == {(3, (3, 7)), (3, (7, 11)), (1, (1, 5)), (1, (5, 9))}


def test_delimiters_are_token_ids_of_the_model() -> None:
    most = HashModel().vocab_size - 1
    assert run(AdaptiveBlocks((most,))).forwards
    with pytest.raises(ValueError, match=rf"delimiters must be token ids .* got {most + 1}\.$"):
        run(AdaptiveBlocks((3, most + 1)))
    # The type checker of the tests would be first.
    texts = AdaptiveBlocks((3,))
    object.__setattr__(texts, "delimiters", (".",))
    with pytest.raises(ValueError, match=r"must be token ids, got the text '\.'.*convert_tokens"):
        texts.__post_init__()

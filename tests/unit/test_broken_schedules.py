"""A schedule that breaks its contract is named, at the first step that shows it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from toys import HashModel

from dllm_decode import (
    AdaptiveBlocks,
    Block,
    BlockSchedule,
    Canvas,
    DecodeOutput,
    Opening,
    Phase,
    decode,
)
from dllm_decode.blocks import Opened
from samplers import ConfidenceThreshold, View

PROMPTS = [[1, 2, 3], [4]]


@dataclass(frozen=True)
class Whole(BlockSchedule):
    """Opens all of the answer at once."""

    @property
    def opens_parts(self) -> bool:
        return True

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        return canvas.blocks(canvas.region_length)

    def measured(self, canvas: Canvas, block_length: int) -> Any:
        return (canvas.masked.sum(-1),)

    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return Opening(phase.block)


class Empty(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return Opening(Block(0, 0))


class EmptyReach(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return Opening(phase.block, Block(4, 4))


class StuckAtFirst(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return Opening(Block(0, 4))


class StuckOnceOpened(Whole):
    def chosen(self, canvas: Canvas, view: View) -> Opened:
        return Opened(canvas, replace(view, eligible=view.eligible & False))


class Nothing(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return None


class Pair(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return 0, 4


class BareBlock(Whole):
    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Any:
        return phase.block


class OneTensor(Whole):
    def measured(self, canvas: Canvas, block_length: int) -> Any:
        return canvas.masked.sum(-1)


class Shares(Whole):
    def measured(self, canvas: Canvas, block_length: int) -> Any:
        return (canvas.masked.sum(-1) / 16,)


class ByPosition(Whole):
    def measured(self, canvas: Canvas, block_length: int) -> Any:
        return (canvas.masked.long(),)


class Numbers(Whole):
    def measured(self, canvas: Canvas, block_length: int) -> Any:
        return (3, 4)


def run(blocks: BlockSchedule) -> DecodeOutput:
    return decode(
        HashModel(), PROMPTS, ConfidenceThreshold(0.9), blocks=blocks, gen_length=8,
        block_length=4, stop_at_eos=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (Empty(), r"opening of Empty\(.*\) must open at least one position of a row"),
        (EmptyReach(), r"opening of EmptyReach\(.*\) must open at least one position of a row"),
        (StuckAtFirst(), r"^StuckAtFirst\(.*\) must open at least one mask of every row"),
        (StuckOnceOpened(), r"^StuckOnceOpened\(.*\) must open at least one mask of every row"),
        (Nothing(), r"opening of Nothing\(.*\) must return an Opening .*, got None"),
        (Pair(), r"opening of Pair\(.*\) must return an Opening .*, got \(0, 4\) \(tuple\)"),
        (BareBlock(), r"opening of BareBlock\(.*\) must return an Opening .*\(Block\)"),
        (OneTensor(), r"measured of OneTensor\(.*\) must return a tuple of Int\[B\] .*\(Tensor\)"),
        (Shares(), r"measured of Shares\(.*\) must return .* torch\.float32 \(2,\) for 2 rows"),
        (ByPosition(), r"measured of ByPosition\(.*\) must return .* \(2, 8\) for 2 rows"),
        (Numbers(), r"measured of Numbers\(.*\) must return .*, got 3 \(int\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BlockSchedule) else "",
)  # fmt: skip
def test_a_broken_schedule_is_named(blocks: BlockSchedule, sentence: str) -> None:
    """Once the sampler was blamed, a torch error raised, or None taken for everything."""
    assert run(Whole()).forwards > 1
    with pytest.raises(RuntimeError, match=sentence):
        run(blocks)


def test_an_opening_that_would_never_be_asked_is_refused() -> None:
    """Once such a schedule decoded as Sequential does, without a word."""

    class Forgetful(Whole):
        @property
        def opens_parts(self) -> bool:
            return False

    with pytest.raises(ValueError, match=r"opens_parts must be True .*, got False from .*Forgetf"):
        run(Forgetful())


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

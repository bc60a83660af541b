"""A window that slides over the answer and holds a constant number of masks (DCD, DSB)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jaxtyping import Bool
from torch import Tensor

from dllm_decode.blocks.base import BlockSchedule, block_of
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import CLOSED, Opening, Row
from samplers.checks import count_from, require_unset
from samplers.facts import Fact


@dataclass(frozen=True)
class SlidingWindow(BlockSchedule):
    """Opens the first masks of the answer, always equally many, for each row at its own pace.

    Before each forward the window begins at the row's first unsettled column. It ends after the
    column that is the `masks`-th unsettled one, at the latest `most` columns after its start. A
    position to the right of the window is not touched; an unsure one at its left end stays open as
    long as need be. `most` equal to `masks` is DSB's constant window, a large `most` its greedy
    one; the defaults are the published setting of DCD.

    Caches compute everything when `masks` more tokens are committed than at the last such forward,
    and in between at least the window.

    Source: Shu et al. 2026, "Deferred Commitment Decoding for Diffusion Language Models with
    Confidence-Aware Sliding Windows", https://arxiv.org/abs/2601.02076 (DCD); Luo et al. 2026,
    "DSB: Dynamic Sliding Block Scheduling for Diffusion LLMs", https://arxiv.org/abs/2602.05992.
    The authors of both use `ConfidenceThreshold(0.9)`.
    Differs: Rows of a batch keep their own pace; DCD has one window for all rows of a batch, so
    that a text depends on its neighbours. The expansion of DCD, which spends a forward to make the
    block of a block-causal model longer and is off by default, is not here.

    Attributes:
        masks: Unsettled columns in the window.
        most: Columns of the window, at most.
        within: "answer": the window may be anywhere in the answer. "block": it also ends where
            the block of its first column ends, as DCD does on block-causal models; if the model's
            logits predict the next column, a block's first token is then committed alone.
        block_length: Tokens per block, if the window stays within blocks; `None`: as
            `DecodeConfig.block_length`.

    Raises:
        ValueError: If a number is not positive.
    """

    masks: Annotated[int, count_from(1)] = 16
    most: Annotated[int, count_from(1, "columns")] = 128
    within: Literal["answer", "block"] = "answer"
    block_length: Annotated[int, count_from(1, "tokens")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within == "answer":
            require_unset(self, "block_length", f"with within={self.within!r}")

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs - ({Fact.SEES_BOTH_WAYS} if self.within == "block" else set())

    def window_length(self, block_length: int, answer_length: int) -> int:
        return answer_length if self.within == "answer" else block_length

    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Bool[Tensor, "B L"]:
        """Returns for each column whether it is unsettled."""
        return canvas.unsettled

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        start, unsettled = row.first_unsettled, row.numbers.blocks
        if self.within == "answer":
            stop = self._stop(unsettled, start, row.end)
            done = row.end - row.blocks_start - sum(unsettled[row.blocks_start : row.end])
            refreshed = done if row.opening == CLOSED else row.opening.note
            if done - refreshed >= self.masks:
                refreshed = done
            window, answer = (start, stop), (row.blocks_start, row.end)
            return Opening(
                start, stop, window, phase=answer, cache_period=(refreshed,), note=refreshed
            )
        block = block_of(row, block_length)
        stop = self._stop(unsettled, start, block[1])
        if shift and start == block[0]:
            stop = start + 1
        return Opening.of_block(*block)._replace(start=start, stop=stop)

    def _stop(self, unsettled: tuple[int, ...], start: int, end: int) -> int:
        """Returns the first column after the window."""
        end = min(end, start + self.most)
        places = [column for column in range(start, end) if unsettled[column]]
        return places[self.masks - 1] + 1 if len(places) >= self.masks else end

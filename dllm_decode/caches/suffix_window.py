"""A window of the columns after the open block (Streaming-dLLM), around any cache policy."""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CacheQuery
from dllm_decode.caches.hiding import Hiding
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class SuffixWindow(Hiding):
    """Leaves the columns far after the open block out of the forward.

    The next `width` columns and the last `tail` columns stay, at their true positions. The other
    columns are neither computed nor attended to until a later block brings them into the window.
    `inner` says which of the columns that stay are computed. On a block-causal model, where a
    forward sees no column after the open block, nothing changes.

    With `width=0, tail=0` nothing is computed for blocks that are not open yet, and `gen_length` is
    an upper bound that costs nothing. Models that were trained on answers of growing length are
    decoded in this way (dLLM-Var, https://arxiv.org/abs/2510.24605).

    Source: Streaming-dLLM 2026, https://arxiv.org/abs/2601.17917, attenuation guided suffix
    modelling as in the authors' code: a window of 96 to 192 columns around `PrefixCache()`. Their
    threshold is `DecayingThreshold`.
    Differs: Any cache policy may be inside; the authors use the prefix cache.

    Attributes:
        inner: The policy that says which of the remaining columns are computed.
        width: Columns that stay after the open block, in addition to the last ones.
        tail: Last columns of the row that stay.

    Raises:
        ValueError: If `inner` is not a cache policy or hides columns itself, or a number of columns
            is negative.
    """

    width: Annotated[int, count_from(0, "columns")] = 96
    tail: Annotated[int, count_from(0, "columns")] = 1

    @property
    def gives(self) -> frozenset[Fact]:
        # Columns are left out, also some that follow the open block.
        return self.inner.gives - {
            Fact.EVERY_COLUMN, Fact.LOGITS_BEHIND_BLOCK, Fact.BEGINS_BLOCKS_ANEW
        }  # fmt: skip

    @property
    def reads_history(self) -> bool:
        return self.inner.reads_history

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B N"] | None:
        return self.inner.numbers(canvas, history, shift)

    def hidden(self, query: CacheQuery) -> Columns:
        return columns((query.block[1] + self.width, query.end - self.tail))

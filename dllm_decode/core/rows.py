"""The rows in which requests are decoded, as numbers on the host."""

from typing import Any, NamedTuple

from dllm_decode.core.columns import Columns
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.requests import Request
from dllm_decode.core.sizes import round_up


class Opening(NamedTuple):
    """The columns that a block schedule has opened in one row.

    The schedules open these columns ("block" stands for its bounds):

                         start, stop    block        phase    cache_period
        Sequential       block          block        block    block
        SubBlocks        sub-block      block        block    block
        MultiBlock       open blocks    open blocks  answer   open blocks
        AdaptiveBlocks   block          block        answer   start of the block
        SlidingWindow    window         window       answer   tokens committed, in steps

    Attributes:
        start: First column that may be settled now, if it is unsettled.
        stop: First column after the columns that may be settled now.
        block: The columns that cache policies take for the open block: first, and first after it.
            For a sampler of a wider scope the engine extends them to the end of the row, or to all
            of it.
        phase: The columns that the sampler's state lasts for: first, and first after it. The
            sampler's window begins with them; the state begins anew when they change.
        cache_period: The period in which a cache policy counts the row's forwards: when this
            changes, `Row.period_forwards` begins at 0 again.
        note: For the schedule's own `narrowed` and `with_commits`; the engine does not read it.
    """

    start: int
    stop: int
    block: tuple[int, int]
    phase: tuple[int, int]
    cache_period: tuple[int, ...]
    note: Any = None

    @property
    def bounds(self) -> tuple[int, int]:
        """The first column that may be settled now, and the first column after those."""
        return self.start, self.stop

    @staticmethod
    def of_block(start: int, stop: int) -> "Opening":
        """Returns the opening of one whole block."""
        return Opening(start, stop, (start, stop), (start, stop), (start, stop))


CLOSED = Opening.of_block(0, 0)
"""No column is open."""


class PluginNumbers(NamedTuple):
    """Numbers of one row that the host read after the last round, for each plug-in that asked.

    A field is empty if its plug-in returns no numbers; `cache` and `verifier` also before the row's
    first round.

    Attributes:
        blocks: As `BlockSchedule.numbers` returned them.
        cache: As `CachePolicy.numbers` returned them.
        verifier: As `Verifier.after` returned them.
    """

    blocks: tuple[int, ...] = ()
    cache: tuple[int, ...] = ()
    verifier: tuple[int, ...] = ()


class Row(NamedTuple):
    """One request that is being decoded, in whole numbers: enough to lay out its next forward.

    Attributes:
        request: The prompt and its options.
        blocks_start: First column of the row's first block: the first column of the answer or, on a
            block-causal model, of the model's block in which the answer begins.
        end: First column after the row.
        first_unsettled: First unsettled column.
        started_s: When the row joined, by `time.perf_counter`.
        opening: The open columns; `CLOSED` before the first round.
        is_fresh: True if the sampler's state has to begin anew.
        period_forwards: Forwards since `Opening.cache_period` changed; a cache policy counts them.
        previous_first_needed: `CacheQuery.first_needed` of the last forward; `None` before
            the first.
        computed: Columns whose cache slots hold something.
        phase_steps: Steps since `Opening.phase` changed, also those that a verifier decided.
        max_steps: Steps within which the sampler promised to finish.
        nfe: Calls of the model in the row's forwards: one a forward, two with guidance.
        query_positions: Columns computed for the row, summed over these calls.
        target_nfe: Forwards of a verifier's target.
        numbers: The numbers that were read after the last round.
        error: The rule that was broken in this row, which ends it; empty: none.
    """

    request: Request
    blocks_start: int
    end: int
    first_unsettled: int
    started_s: float = 0.0
    opening: Opening = CLOSED
    is_fresh: bool = True
    period_forwards: int = 0
    previous_first_needed: int | None = None
    computed: Columns = ()
    phase_steps: int = 0
    max_steps: int = 0
    nfe: int = 0
    query_positions: int = 0
    target_nfe: int = 0
    numbers: PluginNumbers = PluginNumbers()
    error: str = ""

    @staticmethod
    def of(request: Request, block_multiple: int, mask_id: int, started_s: float = 0.0) -> "Row":
        """Returns the row of a request before its first round.

        Args:
            request: The request.
            block_multiple: Blocks begin at multiples of this number; the last is filled up.
            mask_id: The [MASK] token.
            started_s: When the row joins.
        """
        length = len(request.prompt)
        start = length - length % block_multiple
        end = start + round_up(length - start + request.config.gen_length, block_multiple)
        return Row(request, start, end, length + request.first_blank(mask_id), started_s)

    @property
    def config(self) -> DecodeConfig:
        """The options of the request."""
        return self.request.config

    @property
    def prompt_length(self) -> int:
        """Column of answer position 0."""
        return len(self.request.prompt)

    @property
    def answer_end(self) -> int:
        """First column after the answer's own tokens."""
        return self.prompt_length + self.request.config.gen_length

    def with_block(self, start: int, stop: int) -> "Row":
        """Returns the row with other columns for cache policies to take for the open block."""
        opening = self.opening._replace(start=start, stop=stop, block=(start, stop))
        return self._replace(opening=opening)

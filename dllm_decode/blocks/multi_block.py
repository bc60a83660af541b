"""Several blocks open at once (d3LLM)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import CLOSED, Opening, Row
from dllm_decode.core.sending import send
from samplers.base import Decision
from samplers.checks import Share, count_from
from samplers.facts import Fact
from samplers.view import Order, View

# Numbers of an unsettled column and of an EOS; an EOS is settled, so that no column is both.
_UNSETTLED, _EOS = 1, 2


@dataclass(frozen=True)
class MultiBlock(BlockSchedule):
    """Opens the next block before the last one is finished, for each row at its own pace.

    A block's progress is the share of its positions that hold a token. At each step a row opens one
    more block if its last open one has come as far as `open_at`; the masks of all its open blocks
    are then eligible together, and the sampler treats them as one block. A block is *fully active*
    once the block before it, the prompt in the case of the first, has come as far as `force_at`. If
    the sampler commits nothing in the first fully active block with masks, that block's first
    position in `order` is committed too.

    Once a row that ends with its first EOS holds an EOS, its next block opens only when all open
    blocks are finished. With `open_at` and `force_at` at 1 this always holds, as in `Sequential`.

    On a block-causal model, and with `SuffixWindow(NoCache(), 0, tail=0)` on any, nothing is
    computed for blocks that no row has opened, so `gen_length` may be as long as an answer can be.

    Source: d3LLM 2026, https://arxiv.org/abs/2601.07568, entropy-based multi-block decoding; the
    authors use `EntropyThreshold`, block length 32, open_at 0.1, force_at 0.95 and order "entropy".
    `forces="every"`: Wang et al. 2025, "Diffusion LLMs Can Do Faster-Than-AR Inference via Discrete
    Diffusion Forcing", https://arxiv.org/abs/2508.09192 (D2F), for block-causal models; the authors
    use `ConfidenceThreshold(0.9)`, open_at 0.1 to 0.9 and force_at 0.95.
    Differs: Any sampler decides. Rows of a batch keep their own pace; the authors decode one row. A
    block that is full from the start is skipped at once. With `truncate_at_eos`, positions after an
    EOS become EOS before the next step. Progress counts given tokens too. The sampler of D2F
    commits confident tokens only; here it commits at least one per row, in any open block.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
        open_at: Progress, in [0, 1], of the last open block at which one more is opened.
        force_at: Progress, in [0, 1], of the block before at which a block is fully active.
        max_open: Largest number of open blocks with masks left; `None`: no limit.
        order: Which position of a fully active block is committed first.
        forces: Which of the fully active blocks with masks get a commit.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    block_length: Annotated[int, count_from(1, "tokens")] | None = None
    open_at: Share = 0.1
    force_at: Share = 0.95
    max_open: Annotated[int, count_from(1, "blocks")] | None = None
    order: Order = "confidence"
    forces: Literal["first", "every"] = "first"

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.ONE_STEP_A_FORWARD})

    def window_length(self, block_length: int, answer_length: int) -> int:
        return answer_length

    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Int[Tensor, "B N"]:
        """Returns for each column whether it is unsettled or holds an EOS; the host counts them."""
        return canvas.unsettled + _EOS * canvas.eos

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        first, end, numbers = row.blocks_start, row.end, row.numbers.blocks
        blocks = [(at, min(at + block_length, end)) for at in range(first, end, block_length)]
        masks = [numbers[start:stop].count(_UNSETTLED) for start, stop in blocks]
        sizes = [stop - start for start, stop in blocks]
        done = [size - left for size, left in zip(sizes, masks, strict=True)]
        num_open = 1 if row.opening == CLOSED else row.opening.note.num_open
        newest = num_open - 1
        busy = sum(left > 0 for left in masks[:num_open])
        opens = done[newest] >= self.open_at * sizes[newest]
        opens &= not (row.config.stop_at_eos and _EOS in numbers)
        opens &= self.max_open is None or busy < self.max_open
        # Full blocks are skipped at once, so that a row always has a mask in an open block.
        first_left = next((number for number, left in enumerate(masks) if left), 0)
        num_open = max(min(num_open + opens, len(blocks)), first_left + 1)
        open_blocks = [number for number in range(num_open) if masks[number]] or [first_left]
        due = [
            number
            for number in open_blocks
            if number == 0 or done[number - 1] >= self.force_at * sizes[number - 1]
        ]
        due = due[:1] if self.forces == "first" else due
        region = (blocks[open_blocks[0]][0], blocks[open_blocks[-1]][1])
        # If only one block has open masks, the sampler commits one of them anyway.
        note = _Note(num_open, tuple(due) if len(open_blocks) > 1 else (), block_length)
        return Opening(*region, block=region, phase=(first, end), cache_period=region, note=note)

    def with_commits(self, view: View, decision: Decision, openings: Sequence[Opening]) -> Decision:
        if not any(opening.note.due for opening in openings):
            return decision
        size = openings[0].note.block_length
        width = view.tokens.shape[1]
        is_due = [
            [number in opening.note.due for number in range(-(-width // size))]
            for opening in openings
        ]
        due = send(is_due, view.tokens.device)[..., None]
        due = due & _by_block(view.eligible, size)
        lacking = due & ~(_by_block(decision.commit, size) & due).any(-1, keepdim=True)
        scores = _by_block(view.scores(self.order), size)
        best = scores.masked_fill(~lacking, -torch.inf).max(-1, keepdim=True).indices
        forced = lacking & torch.zeros_like(lacking).scatter_(-1, best, True)
        return replace(decision, commit=decision.commit | forced.flatten(1)[:, :width])


class _Note(NamedTuple):
    """The note that the schedule puts into an `Opening`.

    Attributes:
        num_open: Blocks opened so far, finished ones included.
        due: Numbers of the blocks in each of which a position must be committed.
        block_length: Tokens per block.
    """

    num_open: int
    due: tuple[int, ...]
    block_length: int


def _by_block(values: Shaped[Tensor, "B R"], block_length: int) -> Shaped[Tensor, "B N S"]:
    """Returns values of each position block by block; zeros fill up the last block."""
    short = -values.shape[1] % block_length
    filled = pad(values, (0, short)) if short else values
    blocks: Tensor = filled.unflatten(-1, (-1, block_length))
    return blocks

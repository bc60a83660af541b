"""Several blocks open at once (d3LLM)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.blocks.base import BlockSchedule, Reach
from dllm_decode.canvas import Block, Canvas
from samplers.base import Decision
from samplers.checks import require_choice, require_count, require_share
from samplers.view import Order, View


class _Blocks(NamedTuple):
    """A canvas, block by block; the last block may be short.

    Attributes:
        masks: Masks of each block.
        sizes: Positions of each block.
        firsts: First position of each block.
    """

    masks: Int[Tensor, "B N"]
    sizes: Int[Tensor, " N"]
    firsts: Int[Tensor, " N"]


@dataclass(frozen=True)
class MultiBlock(BlockSchedule):
    """Opens the next block before the last one is finished, for each row at its own pace.

    A block's progress is the share of its positions that hold a token. At each step a row opens one
    more block if its last open one has come as far as `open_at`; the masks of all its open blocks
    are then eligible together, and the sampler treats them as one block. A block is *fully active*
    once the block before it, the prompt in the case of the first, has come as far as `force_at`. If
    the sampler commits nothing in the first fully active block with masks, that block's first
    position in `order` is committed too.

    No block opens behind a committed EOS when the answer ends there. With `open_at` and `force_at`
    at 1 a row's next block opens when the one before is finished, as in `Sequential`.

    On a block-causal model, and with `SuffixWindow(NoCache(), 0, tail=0)` on any, nothing is
    computed for blocks that no row has opened, so `gen_length` may be as long as an answer can be.

    Source: d3LLM 2026, https://arxiv.org/abs/2601.07568, entropy-based multi-block decoding; theirs
    goes with `EntropyThreshold`, block length 32, open_at 0.1, force_at 0.95 and order "entropy".
    `forces="every"`: Wang et al. 2025, "Diffusion LLMs Can Do Faster-Than-AR Inference via Discrete
    Diffusion Forcing", https://arxiv.org/abs/2508.09192 (D2F), for block-causal models; theirs goes
    with `ConfidenceThreshold(0.9)`, open_at 0.1 to 0.9 and force_at 0.95.
    Differs: Any sampler decides. Rows of a batch keep their own pace, theirs is a batch of one. A
    block that is full from the start is passed at once. What lies behind an EOS becomes EOS before
    the next step looks at it, if `truncate_at_eos` asks for it. Progress is read off the canvas.
    D2F asks its sampler for no more than confident tokens; here the sampler commits at least one of
    a row, wherever it stands.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
        open_at: Progress, in [0, 1], of the last open block at which one more is opened.
        force_at: Progress, in [0, 1], of the block before at which a block is fully active.
        max_open: Open blocks with masks left, at most; `None`: as many as there are.
        order: Which position of a fully active block is committed first.
        forces: Whether the first fully active block with masks gets a commit, or each of them.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    block_length: int | None = None
    open_at: float = 0.1
    force_at: float = 0.95
    max_open: int | None = None
    order: Order = "confidence"
    forces: Literal["first", "every"] = "first"

    def __post_init__(self) -> None:
        if self.block_length is not None:
            require_count("block_length", self.block_length, 1, unit="tokens")
        require_share("open_at", self.open_at)
        require_share("force_at", self.force_at)
        if self.max_open is not None:
            require_count("max_open", self.max_open, 1, unit="blocks")
        require_choice("order", self.order, get_args(Order))
        require_choice("forces", self.forces, ("first", "every"))

    @property
    def opens_parts(self) -> bool:
        return True

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        return canvas.blocks(canvas.region_length)

    def opened(self, canvas: Canvas, block_length: int, *, stops_at_eos: bool) -> Canvas:
        blocks = _blocks(canvas, canvas.masked, block_length)
        done = blocks.sizes - blocks.masks
        has_masks = blocks.masks > 0
        num_open = self._num_open(canvas, done, blocks, stops_at_eos=stops_at_eos)
        # Whatever the rule says, a row has something to do: full blocks are passed at once.
        first_left = torch.where(has_masks.any(-1), has_masks.long().argmax(-1), 0)
        num_open = torch.maximum(num_open, first_left + 1)
        index = torch.arange(len(blocks.sizes), device=num_open.device)
        is_active = pad((done >= self.force_at * blocks.sizes)[:, :-1], (1, 0), value=True)
        is_due = is_active & has_masks & (index < num_open[:, None])
        if self.forces == "first":
            is_due &= is_due.cumsum(-1) == 1
        positions = torch.arange(canvas.region_length, device=num_open.device) // block_length
        return canvas.with_opened(positions < num_open[:, None], is_due[:, positions])

    def _num_open(
        self, canvas: Canvas, done: Int[Tensor, "B N"], blocks: _Blocks, *, stops_at_eos: bool
    ) -> Int[Tensor, " B"]:
        """Returns how many blocks are open, by the rule alone."""
        if canvas.opened is None:
            num_open = torch.ones_like(canvas.rows)
        else:
            num_open = canvas.opened[:, blocks.firsts].sum(-1)
        last = num_open[:, None] - 1
        sizes = blocks.sizes[last.squeeze(-1)]
        opens = done.gather(1, last).squeeze(-1) >= self.open_at * sizes
        if stops_at_eos:
            opens &= ~canvas.has_eos
        if self.max_open is not None:
            index = torch.arange(len(blocks.sizes), device=num_open.device)
            busy = (blocks.masks > 0) & (index < num_open[:, None])
            opens &= busy.sum(-1) < self.max_open
        return (num_open + opens).clamp(max=len(blocks.sizes))

    def reach(self, canvas: Canvas, block_length: int) -> Reach | None:
        blocks = _blocks(canvas, canvas.open_masks & canvas.running[:, None], block_length)
        is_busy, length = blocks.masks > 0, canvas.region_length
        starts = torch.where(is_busy, blocks.firsts, length).amin(-1)
        ends = torch.where(is_busy, blocks.firsts + blocks.sizes, 0).amax(-1)
        return Reach(starts, ends)

    def completed(
        self, canvas: Canvas, view: View, decision: Decision, block_length: int
    ) -> Decision:
        assert canvas.due is not None
        due = _by_block(canvas.due & view.eligible, block_length)
        lacking = due & ~(_by_block(decision.commit, block_length) & due).any(-1, keepdim=True)
        scores = _by_block(view.scores(self.order), block_length)
        best = scores.masked_fill(~lacking, -torch.inf).max(-1, keepdim=True).indices
        forced = lacking & torch.zeros_like(lacking).scatter_(-1, best, True)
        return replace(decision, commit=decision.commit | forced.flatten(1)[:, : canvas.region_length])


def _blocks(canvas: Canvas, masks: Bool[Tensor, "B R"], block_length: int) -> _Blocks:
    length = canvas.region_length
    firsts = torch.arange(0, length, block_length, device=masks.device)
    counts = _by_block(masks, block_length).sum(-1)
    return _Blocks(counts, (length - firsts).clamp(max=block_length), firsts)


def _by_block(values: Shaped[Tensor, "B R"], block_length: int) -> Shaped[Tensor, "B N S"]:
    """Returns what is known of each position, block by block; zeros fill up the last block."""
    short = -values.shape[1] % block_length
    return (pad(values, (0, short)) if short else values).unflatten(-1, (-1, block_length))

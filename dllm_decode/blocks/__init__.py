"""Block schedules: which positions of each row are open."""

from dllm_decode.blocks.adaptive import AdaptiveBlocks
from dllm_decode.blocks.base import BlockSchedule, block_of
from dllm_decode.blocks.multi_block import MultiBlock
from dllm_decode.blocks.sequential import Sequential
from dllm_decode.blocks.sliding_window import SlidingWindow
from dllm_decode.blocks.sub_blocks import SubBlocks
from dllm_decode.core.rows import CLOSED, Opening, Row

__all__ = [
    "CLOSED",
    "AdaptiveBlocks",
    "BlockSchedule",
    "MultiBlock",
    "Opening",
    "Row",
    "Sequential",
    "SlidingWindow",
    "SubBlocks",
    "block_of",
]

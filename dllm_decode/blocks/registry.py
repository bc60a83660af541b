"""All block schedules by name.

`make lists` writes the imports and `ALL_SCHEDULES`.
"""

from dllm_decode.blocks.adaptive import AdaptiveBlocks
from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.blocks.multi_block import MultiBlock
from dllm_decode.blocks.sequential import Sequential
from dllm_decode.blocks.sliding_window import SlidingWindow
from dllm_decode.blocks.sub_blocks import SubBlocks

ALL_SCHEDULES: tuple[type[BlockSchedule], ...] = (
    AdaptiveBlocks,
    MultiBlock,
    Sequential,
    SlidingWindow,
    SubBlocks,
)

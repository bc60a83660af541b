"""Block schedules: which positions of each row are open."""

from dllm_decode.blocks.adaptive import AdaptiveBlocks
from dllm_decode.blocks.base import BlockSchedule, Progress
from dllm_decode.blocks.multi_block import MultiBlock
from dllm_decode.blocks.registry import ALL_SCHEDULES, parse
from dllm_decode.blocks.sequential import Sequential
from dllm_decode.blocks.sub_blocks import SubBlocks
from dllm_decode.core.rows import Opening

__all__ = [
    "ALL_SCHEDULES",
    "AdaptiveBlocks",
    "BlockSchedule",
    "MultiBlock",
    "Opening",
    "Progress",
    "Sequential",
    "SubBlocks",
    "parse",
]

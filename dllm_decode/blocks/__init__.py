"""Block schedules: which positions of each row are open."""

from dllm_decode.blocks.base import BlockSchedule, Reach
from dllm_decode.blocks.multi_block import MultiBlock
from dllm_decode.blocks.registry import ALL_SCHEDULES, parse
from dllm_decode.blocks.sequential import Sequential

__all__ = ["ALL_SCHEDULES", "BlockSchedule", "MultiBlock", "Reach", "Sequential", "parse"]

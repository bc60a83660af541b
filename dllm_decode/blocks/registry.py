"""All block schedules by name, and schedules from text: `MultiBlock(32, open_at=0.5)`."""

from dllm_decode.blocks.adaptive import AdaptiveBlocks
from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.blocks.multi_block import MultiBlock
from dllm_decode.blocks.sequential import Sequential
from dllm_decode.blocks.sub_blocks import SubBlocks
from samplers.expression import parse_plugin

ALL_SCHEDULES: tuple[type[BlockSchedule], ...] = (
    AdaptiveBlocks,
    MultiBlock,
    Sequential,
    SubBlocks,
)


def parse(text: str) -> BlockSchedule:
    """Builds the schedule that an expression describes; the inverse of `repr`.

    `my_package.my_module:MySchedule(8)` imports that module and builds the user's own schedule.

    Raises:
        ValueError: If the text does not describe a schedule.
    """
    by_name = {schedule.__name__: schedule for schedule in ALL_SCHEDULES}
    return parse_plugin(text, BlockSchedule, by_name)  # type: ignore[type-abstract]  # subclasses

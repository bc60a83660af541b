"""What a verifier knows of blocks that are not open yet."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class Lookahead(NamedTuple):
    """What is known of a row's next block before it is opened.

    Attributes:
        start: First answer position of that block; a template may leave nothing open there, and
            then another block is opened next.
        tokens: The row's state in which the logits were computed.
        logits: Of that block.
    """

    start: int
    tokens: Int[Tensor, " L"]
    logits: Float[Tensor, "W V"]


class Pending(NamedTuple):
    """What rows may know of their next block: the host has yet to learn which of them do.

    Attributes:
        start: First answer position of that block.
        ids: The rows.
        tokens: The rows' states.
        logits: Of that block, in each row's states.
        places: Which of these is the row's present one.
    """

    start: int
    ids: list[int]
    tokens: Int[Tensor, "B L"]
    logits: Float[Tensor, "B D W V"]
    places: Int[Tensor, " B"]

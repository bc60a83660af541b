"""A streamer that keeps what it is given, as `draft_observer` wants one."""

from torch import Tensor


class Streamer:
    def __init__(self) -> None:
        self.drafts: list[Tensor] = []
        self.texts: list[Tensor] = []
        self.ended = 0

    def put_draft(self, value: Tensor) -> None:
        self.drafts.append(value)

    def put(self, value: Tensor) -> None:
        self.texts.append(value)

    def end(self) -> None:
        self.ended += 1

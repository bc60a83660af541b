"""What the host reads of a round, all at once: whether plug-ins kept their contracts, and numbers.

Each wait for an accelerator costs more than what is read, so all of it is read together.
"""

from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


class Breach(NamedTuple):
    """A rule of a plug-in's contract, and where it was broken.

    Attributes:
        found: True where it was.
        culprit: The plug-in, or the model's name.
        duty: What the culprit must do.
    """

    found: Bool[Tensor, "*shape"]
    culprit: object
    duty: str


class Asked(NamedTuple):
    """Numbers that the host will read.

    Attributes:
        ids: The rows.
        numbers: Of each row.
    """

    ids: list[int]
    numbers: tuple[Int[Tensor, " B"], ...]

    def answered(self, read: list[int]) -> dict[int, list[int]]:
        """Returns each row's numbers, given all of them one after the other."""
        width = len(self.ids)
        return {row: read[place::width] for place, row in enumerate(self.ids)}


class RoundReads:
    """Collects what the host is to read, and reads it once a round."""

    def __init__(self) -> None:
        self._breaches: list[Breach] = []
        self._num_rounds = 0
        self._asked: Asked | None = None
        self._answers: dict[int, list[int]] = {}

    def forbid(self, found: Bool[Tensor, "*shape"], culprit: object, duty: str) -> None:
        """Notes where a plug-in broke its contract; the next `sync` raises if it is anywhere."""
        self._breaches.append(Breach(found, culprit, duty))

    def require_finite(self, logits: Float[Tensor, "B N V"], culprit: str) -> None:
        """Notes NaN and infinity; a token may be impossible, but not all of a column."""
        # A sum is five times cheaper than a maximum, and only a CPU can be asked without waiting.
        if logits.device.type == "cpu" and logits.sum(-1).isfinite().all():
            return
        self.forbid(~logits.amax(-1).isfinite(), culprit, "give logits without NaN or infinity")

    def ask(self, ids: list[int], *numbers: Int[Tensor, " B"]) -> None:
        """Has further numbers of each row read at the next `sync`."""
        self._asked = Asked(ids, numbers)

    def answers(self, ids: list[int]) -> list[list[int]]:
        """Returns the numbers of some rows that were asked for last."""
        if self._asked is not None:
            # Nobody has waited for them yet.
            asked, self._asked = self._asked, None
            self._answers = asked.answered(torch.cat(asked.numbers).tolist())
        return [self._answers[row] for row in ids]

    def sync(self, *numbers: Shaped[Tensor, " B"]) -> list[list[int]]:
        """Reads numbers of each row, and whether there was a breach.

        Raises:
            RuntimeError: If a plug-in broke its contract in this round.
        """
        breaches, self._breaches = self._breaches, []
        asked, self._asked = self._asked, None
        self._num_rounds += 1
        found = [breach.found.any()[None] for breach in breaches]
        further = () if asked is None else asked.numbers
        read = torch.cat([*found, *numbers, *further]).tolist()
        for breach, is_broken in zip(breaches, read, strict=False):
            if is_broken:
                raise RuntimeError(
                    f"{breach.culprit} must {breach.duty}, and did not in step {self._num_rounds}."
                )
        parts = iter(read[len(breaches) :])
        listed = [list(islice(parts, len(part))) for part in numbers]
        if asked is not None:
            self._answers = asked.answered(list(parts))
        return listed

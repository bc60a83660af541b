"""Everything that changes during a decode, as one value."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.model import KVCache
from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.commit_state import CommitState
from dllm_decode.engine.constraints.constrained_rows import ConstrainedRows
from dllm_decode.engine.layout import Layout
from samplers.state import pad_state, put_state, take_state


class CacheState(NamedTuple):
    """Keys and values, and when they were computed.

    Attributes:
        capacity: Rows of the state, at most.
        kv_cache: Row n of the state has row n of the cache, and copies at n plus multiples of
            `capacity`; `None` without a cache.
        num_slots: Slots for a row's own columns; the cache may have further slots, for drafts.
        history: When each column was computed; `None` unless the policy reads it.
        reserved_slots: Slots of a row that are allocated at once, so that longer rows need no copy.
    """

    capacity: int = 0
    kv_cache: KVCache | None = None
    num_slots: int = 0
    history: History | None = None
    reserved_slots: int = 0

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Keys and values of all layers; axis 1 is the row. Empty without a cache."""
        return () if self.kv_cache is None else self.kv_cache.buffers

    @property
    def num_rows(self) -> int:
        """Rows of the cache."""
        return 0 if self.kv_cache is None else self.kv_cache.keys.shape[1]


class Cost(NamedTuple):
    """Counts of forwards of all rows together, and of drafted tokens, which only the device knows.

    Attributes:
        forwards: Calls of the mask predictor.
        target_forwards: Calls of a verifier's target.
        drafted: Tokens that a verifier drafted for each row.
        accepted: Drafted tokens that were verified and kept.
    """

    forwards: int
    target_forwards: int
    drafted: Int[Tensor, " B"]
    accepted: Int[Tensor, " B"]

    @staticmethod
    def zero(device: torch.device) -> "Cost":
        """Returns the cost before the first forward, without rows."""
        no_rows = torch.zeros(0, dtype=torch.long, device=device)
        return Cost(0, 0, no_rows, no_rows)


class Breach(NamedTuple):
    """A rule of a plug-in's contract, and where it was broken.

    Attributes:
        found: True where the rule was broken.
        culprit: The plug-in, or the model's name.
        duty: The rule, to be read after "must".
        rows: The row of each entry of `found`.
    """

    found: Bool[Tensor, " N"]
    culprit: object
    duty: str
    rows: Sequence[int]


class State(NamedTuple):
    """Everything that changes during a decode. Row n of every part belongs to one request.

    Attributes:
        rows: The rows, in numbers that the host knows.
        canvas: Tokens, and which are settled.
        noise_keys: Noise key of each row.
        cost: Counts of forwards and of drafted tokens.
        cache: Keys and values.
        sampler_state: The sampler's state.
        blocks_state: The block schedule's state.
        verifier_state: The verifier's state.
        commits: The commits so far; `None` unless they are recorded.
        constrained_rows: Rows whose answer must be in a set of texts; `None`: no row.
        breaches: Rules that may have been broken in this round; read once a round.
        window: The sampler's window; `None`: to be made anew.
        layout: Layout of the last forward; `None`: to be made anew.
        num_rounds: Rounds so far.
        decode_number: Number of the decode in this process, for observers.
    """

    rows: tuple[Row, ...]
    canvas: Canvas
    noise_keys: Int[Tensor, " B"]
    cost: Cost
    cache: CacheState
    sampler_state: Any = None
    blocks_state: Any = None
    verifier_state: Any = None
    commits: CommitState | None = None
    constrained_rows: ConstrainedRows | None = None
    breaches: tuple[Breach, ...] = ()
    window: Window | None = None
    layout: Layout | None = None
    num_rounds: int = 0
    decode_number: int = 0

    @staticmethod
    def empty(
        capacity: int, canvas: Canvas, decode_number: int = 0, reserved_slots: int = 0
    ) -> "State":
        """Returns the state without rows, for at most `capacity` of them.

        Args:
            capacity: Rows, at most.
            canvas: A canvas without rows.
            decode_number: As the attribute.
            reserved_slots: As in `CacheState`.
        """
        device = canvas.tokens.device
        cache = CacheState(capacity, reserved_slots=reserved_slots)
        no_keys = torch.zeros(0, dtype=torch.long, device=device)
        return State((), canvas, no_keys, Cost.zero(device), cache, decode_number=decode_number)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.noise_keys.device

    def with_breach(
        self,
        found: Bool[Tensor, "N ..."],
        culprit: object,
        duty: str,
        rows: Sequence[int] = (),
    ) -> "State":
        """Returns the state with a breach, see `Breach`; without `rows`, entry n is of row n."""
        by_row = found if found.ndim == 1 else found.flatten(1).any(-1)
        breach = Breach(by_row, culprit, duty, rows or range(len(self.rows)))
        return self._replace(breaches=(*self.breaches, breach))

    def take(self, rows: Sequence[int]) -> "State":
        """Returns the state of some rows, in all parts that a decision reads or changes.

        If some rows are left out, the other parts are empty; `put` keeps those of all rows.
        """
        if len(rows) == len(self.rows):
            return self
        index = send(rows, self.device)
        cost = self.cost
        constrained = self.constrained_rows
        return self._replace(
            rows=tuple(self.rows[row] for row in rows),
            canvas=self.canvas.take(index),
            noise_keys=self.noise_keys[index],
            cost=cost._replace(drafted=cost.drafted[index], accepted=cost.accepted[index]),
            cache=CacheState(),
            sampler_state=take_state(self.sampler_state, index),
            blocks_state=take_state(self.blocks_state, index),
            verifier_state=None,
            commits=take_state(self.commits, index),
            constrained_rows=constrained and constrained.take(rows),
            breaches=(),
            window=None,
            layout=None,
        )

    def put(self, rows: Sequence[int], part: "State") -> "State":
        """Returns the state after a decision on some rows, whose state was taken by `take`."""
        if len(rows) == len(self.rows):
            return part
        index = send(rows, self.device)
        values = list(self.rows)
        for row, value in zip(rows, part.rows, strict=True):
            values[row] = value
        changes = {
            name: _put(getattr(self, name), index, getattr(part, name), len(values))
            for name in ("sampler_state", "blocks_state", "commits")
        }
        found = (breach._replace(rows=[rows[n] for n in breach.rows]) for breach in part.breaches)
        return self._replace(
            rows=tuple(values),
            canvas=self.canvas.put(index, part.canvas),
            breaches=(*self.breaches, *found),
            **changes,
        )

    def with_drafts(
        self, *, drafted: Int[Tensor, " B"] | int = 0, accepted: Int[Tensor, " B"] | int = 0
    ) -> "State":
        """Adds drafted and accepted tokens to the cost."""
        cost = self.cost
        cost = cost._replace(drafted=cost.drafted + drafted, accepted=cost.accepted + accepted)
        return self._replace(cost=cost)


def _put(before: Any, index: Int[Tensor, " N"], after: Any, num_rows: int) -> Any:
    """Returns a plug-in's state for all rows, updated in the rows that took a step."""
    if before is None and after is not None:
        before = pad_state(take_state(after, index[:0]), num_rows)
    return put_state(before, index, after)

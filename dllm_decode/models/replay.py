"""Forwards that are recorded once and played again: on CUDA, without Python and kernel launches."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dllm_decode.models.base import Inputs

Run: TypeAlias = Callable[[Inputs], Tensor]
"""Computes the logits of a forward, `MaskPredictor.predict`."""

Play: TypeAlias = Callable[[], Tensor]
"""Computes them again from the same tensors, whose contents may have changed."""

Record: TypeAlias = Callable[[Run, Inputs], Play]
"""Records a forward."""


class CudaGraphs:
    """Records forwards as CUDA graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run, inputs: Inputs) -> Play:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = run(inputs)

        def play() -> Tensor:
            graph.replay()
            return logits

        return play


@dataclass
class Replay:
    """Runs forwards, and plays those again that have the shapes of an earlier one.

    A decode has few shapes: one for computing everything, one for a block, and the same for fewer
    rows. The first forward of a shape runs as ever, which also warms up; the second is recorded
    with tensors of its own for what comes in, and from then on only these are filled and the
    recording played. Keys and values are read and written where they are: a recording serves every
    memory at the same address, which the allocator gives to one decode after the other.

    Attributes:
        run: The forward.
        record: Records it.
        max_recordings: How many are kept, each with logits of its own; the one that was not used
            for longest goes first.
    """

    run: Run
    record: Record = field(default_factory=CudaGraphs)
    max_recordings: int = 16
    _seen: set[Hashable] = field(default_factory=set)
    _recordings: OrderedDict[Hashable, tuple[Inputs, Play]] = field(default_factory=OrderedDict)

    def __call__(self, inputs: Inputs) -> Float[Tensor, "B W V"]:
        """Returns the logits, which are the caller's to change."""
        inputs = _with_slots(inputs)
        key = _key(inputs)
        if key not in self._seen:
            self._seen.add(key)
            return self.run(inputs)
        # Whatever mode the caller is in: the tensors of a recording serve them all.
        with torch.inference_mode():
            logits = self._play(key, inputs)
        return logits.clone()

    def _play(self, key: Hashable, inputs: Inputs) -> Float[Tensor, "B W V"]:
        if key not in self._recordings:
            static = _copied(inputs)
            self._recordings[key] = (static, self.record(self.run, static))
            if len(self._recordings) > self.max_recordings:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        static, play = self._recordings[key]
        for there, here in zip(_tensors(static), _tensors(inputs), strict=True):
            there.copy_(here)
        return play()


def _tensors(inputs: Inputs) -> list[Tensor]:
    """Lists what differs from one forward of a shape to the next."""
    parts = (
        inputs.tokens, inputs.positions, inputs.wanted, inputs.attend, inputs.slots, inputs.rows
    )  # fmt: skip
    return [part for part in parts if isinstance(part, Tensor)]


def _with_slots(inputs: Inputs) -> Inputs:
    """Names every slot, so that one recording serves all blocks."""
    if not isinstance(inputs.slots, slice):
        return inputs
    assert inputs.memory is not None
    start, stop, step = inputs.slots.indices(inputs.memory.keys.shape[3])
    slots = torch.arange(start, stop, step, device=inputs.tokens.device)
    return replace(inputs, slots=slots.expand_as(inputs.tokens))


def _copied(inputs: Inputs) -> Inputs:
    """Returns the same forward with tensors of its own."""
    return Inputs(
        tokens=_own(inputs.tokens),
        positions=_own(inputs.positions),
        wanted=_own(inputs.wanted),
        attend=None if inputs.attend is None else _own(inputs.attend),
        memory=inputs.memory,
        slots=_own(inputs.slots) if isinstance(inputs.slots, Tensor) else inputs.slots,
        rows=_own(inputs.rows) if isinstance(inputs.rows, Tensor) else inputs.rows,
    )


def _own(part: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    return part.clone(memory_format=torch.contiguous_format)


def _key(inputs: Inputs) -> Hashable:
    """Says which forwards are alike: shapes, and where keys and values are."""
    rows = inputs.rows
    kept = (rows.start, rows.stop) if isinstance(rows, slice) else None
    shapes = [
        None if not isinstance(part, Tensor) else tuple(part.shape)
        for part in (inputs.tokens, inputs.wanted, inputs.attend, inputs.slots, inputs.rows)
    ]
    memory = inputs.memory
    if memory is None:
        return (*shapes, kept)
    place = [(part.data_ptr(), part.shape, part.stride()) for part in memory.buffers]
    return (*shapes, kept, *place)

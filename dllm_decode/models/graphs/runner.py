"""Forwards that are recorded once and played again: on CUDA, without Python and kernel launches."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dllm_decode.models.base import ForwardInputs
from dllm_decode.models.graphs.padding import PaddedForward, pad_to_bucket

Run: TypeAlias = Callable[[ForwardInputs], Tensor]
"""Computes the logits of a forward, `MaskPredictor.predict`."""

Play: TypeAlias = Callable[[], Tensor]
"""Computes them again from the same tensors, whose contents may have changed."""

Record: TypeAlias = Callable[[Run, ForwardInputs], Play]
"""Records a forward."""

# Shapes that are remembered as seen, for each that may be recorded.
_SEEN_PER_RECORDING = 16


class CudaGraphs:
    """Records forwards as CUDA graphs, which share one pool of memory.

    A graph may overwrite what another one computed in passing, and its logits too: these are copied
    before the next one is played.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._failed: list[torch.cuda.CUDAGraph] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "CudaGraphs":
        return CudaGraphs()

    def __call__(self, run: Run, inputs: ForwardInputs) -> Play:
        """Captures a forward, on the device that its inputs are on.

        Raises:
            RuntimeError: If the forward does what a graph cannot.
        """
        device, graph = inputs.tokens.device, torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            if self._stream is None:
                # Of one's own: torch's belongs to the device that it was first needed on.
                self._stream = torch.cuda.Stream()
            # On the stream and the tensors of the capture: a kernel that is made for them, or
            # loaded late, is there in time. Keys and values come out the same twice.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                run(inputs)
            pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
            # Up to torch 2.11 a pool in which a capture failed counts as being captured for good,
            # and the allocator refers to the graph for good.
            self._pool = None
            self._failed.append(graph)
            capture = torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            )
            # A capture that fails leaves its own stream the current one.
            with torch.cuda.stream(torch.cuda.current_stream()), capture:
                logits = run(inputs)
            self._pool = pool
            self._failed.pop()

        def play() -> Tensor:
            graph.replay()
            return logits

        return play


@dataclass
class _Recording:
    """A forward that can be played again.

    Attributes:
        static: The tensors that it reads.
        filled: What these were filled with last.
        play: Plays it.
        num_bytes: Of its logits.
    """

    static: list[Tensor]
    filled: list[Tensor]
    play: Play
    num_bytes: int = 0

    def __call__(self, parts: list[Tensor]) -> Float[Tensor, "B W V"]:
        """Plays it with other contents; the next play overwrites the logits."""
        for there, here, before in zip(self.static, parts, self.filled, strict=True):
            if here is not before:
                there.copy_(here)
        self.filled = parts
        logits = self.play()
        self.num_bytes = logits.nbytes
        return logits


@dataclass
class GraphRunner:
    """Runs forwards, and plays those again that have the sizes of an earlier one.

    Forwards are filled up to few sizes first, see `bucketed`. The first of a size runs as ever,
    which also warms up; the second is recorded with tensors of its own for what comes in, and from
    then on only these are filled and the recording played. Keys and values are read and written
    where they are: a recording serves every memory at the same address, see `KVBufferPool`. Weights
    too:
    they may be changed in place, but not replaced, other than by the model's own `to` and the like.

    A forward that cannot be recorded runs as ever from then on. Forwards of many columns run as
    ever too, and are not filled up: they keep a GPU busy for longer than they take to launch.

    Attributes:
        run: The forward.
        record: Records it.
        max_recordings: How many are kept; the one that was not used for longest goes first. Each
            takes some MB, and all together the scratch of the largest.
        max_logits_bytes: Of all recordings; each holds its own logits.
        max_columns: Of a forward that is recorded, of all its rows together.
    """

    run: Run
    record: Record = field(default_factory=CudaGraphs)
    max_recordings: int = 64
    max_logits_bytes: int = 2**31
    max_columns: int = 4096
    _seen: OrderedDict[Hashable, bool] = field(default_factory=OrderedDict, init=False)
    _recordings: OrderedDict[Hashable, _Recording] = field(default_factory=OrderedDict, init=False)
    _last: PaddedForward | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphRunner":
        # Recordings read the weights of the model that they were made with.
        return replace(self, run=deepcopy(self.run, memo), record=deepcopy(self.record, memo))

    def __call__(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Returns the logits, which are the caller's to change."""
        if inputs.tokens.numel() > self.max_columns:
            return self.run(inputs)
        filled = pad_to_bucket(inputs, self._last)
        self._last = filled.without_memory
        recording = self._recording(filled.inputs)
        if recording is None:
            return filled.cut(self.run(filled.inputs))
        # Whatever mode the caller is in: the tensors of a recording serve them all.
        with torch.inference_mode():
            logits = recording(_tensors(filled.inputs))
        logits = filled.cut(logits)
        return logits.clone() if isinstance(filled.layout.rows, slice) else logits

    def _recording(self, inputs: ForwardInputs) -> _Recording | None:
        """Returns what to play; `None`: it is the first of its sizes, or cannot be recorded."""
        key = _key(inputs)
        if key in self._recordings:
            self._recordings.move_to_end(key)
        elif self._may_record(key):
            self._make_room()
            static = _copied(inputs)
            try:
                play = self.record(self.run, static)
            except RuntimeError as error:
                self._seen[key] = False
                self._warn(error)
            else:
                self._recordings[key] = _Recording(_tensors(static), _tensors(inputs), play)
        return self._recordings.get(key)

    def _may_record(self, key: Hashable) -> bool:
        known = key in self._seen
        may = self._seen.setdefault(key, True)
        self._seen.move_to_end(key)
        if len(self._seen) > _SEEN_PER_RECORDING * self.max_recordings:
            self._seen.popitem(last=False)
        return known and may

    def _make_room(self) -> None:
        """Forgets recordings until there may be one more, which are then recorded late as well."""
        held = sum(recording.num_bytes for recording in self._recordings.values())
        while self._recordings and (
            len(self._recordings) >= self.max_recordings or held >= self.max_logits_bytes
        ):
            key, recording = self._recordings.popitem(last=False)
            self._seen.pop(key, None)
            held -= recording.num_bytes

    def _warn(self, error: RuntimeError) -> None:
        if not self._has_warned:
            warnings.warn(
                f"A forward cannot be captured as a CUDA graph ({str(error).splitlines()[0]}), so "
                "it and others like it run without, which is slower. To try none, set "
                "model.graphs = False.",
                stacklevel=2,
            )
        self._has_warned = True


def _tensors(inputs: ForwardInputs) -> list[Tensor]:
    """Lists what differs from one forward of a size to the next."""
    parts = (
        inputs.tokens, inputs.positions, inputs.wanted, inputs.attend, inputs.slots, inputs.rows
    )  # fmt: skip
    return [part for part in parts if isinstance(part, Tensor)]


def _copied(inputs: ForwardInputs) -> ForwardInputs:
    """Returns the same forward with tensors of its own."""
    # Whatever mode the caller is in: they are filled in this one.
    with torch.inference_mode():
        return ForwardInputs(
            tokens=_own(inputs.tokens),
            positions=_own(inputs.positions),
            wanted=_own(inputs.wanted),
            attend=None if inputs.attend is None else _own(inputs.attend),
            kv_cache=inputs.kv_cache,
            slots=_own(inputs.slots) if isinstance(inputs.slots, Tensor) else inputs.slots,
            rows=_own(inputs.rows) if isinstance(inputs.rows, Tensor) else inputs.rows,
        )


def _own(part: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    return part.clone(memory_format=torch.contiguous_format)


def _key(inputs: ForwardInputs) -> Hashable:
    """Says which forwards are alike: sizes, and where keys and values are."""
    rows = inputs.rows
    kept = (rows.start, rows.stop) if isinstance(rows, slice) else None
    shapes = [
        None if not isinstance(part, Tensor) else tuple(part.shape)
        for part in (inputs.tokens, inputs.wanted, inputs.attend, inputs.slots, inputs.rows)
    ]
    kv_cache = inputs.kv_cache
    if kv_cache is None:
        return (*shapes, kept)
    place = [(part.data_ptr(), part.shape, part.stride()) for part in kv_cache.buffers]
    return (*shapes, kept, *place)

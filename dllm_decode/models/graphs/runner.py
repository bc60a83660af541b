"""Runs forwards, and replays those that occur often as CUDA graphs."""

import warnings
from collections import OrderedDict
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.capture import Capture, CudaGraphs, Replay, Run
from dllm_decode.models.graphs.padding import is_padded, pad_to_bucket
from dllm_decode.models.network.rounding import disagreement

# Shapes that are remembered as seen, for each graph that may be kept.
_SEEN_PER_GRAPH = 16
# Largest difference that is put down to rounding, as a share of the largest number compared.
_TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}


class _Graph(NamedTuple):
    """A captured forward: the tensors that it reads."""

    inputs: ForwardInputs
    replay: Replay


@dataclass
class GraphRunner:
    """Runs forwards of one model, and replays graphs of those that occur often.

    A forward that reads a cache of the `KVBufferPool` is padded to one of few sizes. The first of
    a size runs eagerly; at the second, a graph of that size is captured with tensors of its own and
    zeros in them, filled, replayed, and compared with the eager forward. From then on its inputs
    are copied into those tensors and the graph is replayed. Everything else runs as it is: forwards
    without a cache, or with many columns, keep a GPU busy for longer than they take to launch.

    Nothing is trusted before it agreed. If a forward cannot be captured, or a replay disagrees, one
    warning says so and every forward runs eagerly from then on.

    Attributes:
        capture: Captures a forward.
        max_graphs: Graphs that are kept; the one unused for longest goes first.
        max_columns: Largest forward that is padded, all rows of the cache together.
        failed: Graphs are off for good.
        pool: Allocates the caches whose forwards are replayed.
    """

    capture: Capture = field(default_factory=CudaGraphs)
    max_graphs: int = 64
    max_columns: int = 4096
    failed: bool = field(default=False, init=False)
    pool: KVBufferPool = field(default_factory=KVBufferPool, init=False)
    _seen: OrderedDict[Hashable, None] = field(default_factory=OrderedDict, init=False)
    _graphs: OrderedDict[Hashable, _Graph] = field(default_factory=OrderedDict, init=False)
    _logits: Tensor | None = field(default=None, init=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphRunner":
        # Graphs read the weights of the model that they were captured from.
        return replace(self, capture=deepcopy(self.capture, memo))

    @property
    def num_graphs(self) -> int:
        """Graphs that are kept now."""
        return len(self._graphs)

    def __call__(
        self, run: Run, inputs: ForwardInputs, *, required: bool = False
    ) -> Float[Tensor, "B W V"]:
        """Returns the logits of a forward, which are the caller's to change.

        Args:
            run: The forward, eagerly. It is not kept.
            inputs: Its inputs.
            required: Raise instead of warning.

        Raises:
            RuntimeError: If graphs are required, and a forward cannot be captured or disagrees.
        """
        kv_cache = inputs.kv_cache
        whole = None if self.failed or kv_cache is None else self.pool.whole_of(kv_cache)
        if whole is None or not is_padded(inputs, whole, max_columns=self.max_columns):
            return run(inputs)
        padded = pad_to_bucket(inputs, whole)
        try:
            logits = self._replayed(run, padded.inputs)
        except torch.OutOfMemoryError:
            # Nothing is wrong with the forward: make room, and try again when there is some.
            self.forget()
            logits = None
        except RuntimeError as error:
            self.forget()
            self.failed = True
            _report(error, padded.inputs, required=required)
            logits = None
        if logits is None:
            return padded.cut(run(padded.inputs))
        cut = padded.cut(logits)
        return cut.clone() if isinstance(padded.rows, slice) else cut

    def forget(self) -> None:
        """Drops all graphs and what they hold; they are captured anew when needed."""
        self._graphs.clear()
        self._seen.clear()
        self._logits = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _replayed(self, run: Run, inputs: ForwardInputs) -> Float[Tensor, "B W V"] | None:
        """Replays a forward; `None` the first time that its size is seen."""
        key = _key(inputs)
        known = self._graphs.get(key)
        if known is None and not self._was_seen(key):
            return None
        # The tensors of a graph serve callers in any mode.
        with torch.inference_mode():
            graph = self._captured(run, inputs) if known is None else known
            for there, here in zip(_varying(graph.inputs), _varying(inputs), strict=True):
                there.copy_(here)
            if known is not None:
                self._graphs.move_to_end(key)
                return known.replay()
            logits = _check_replay(graph.replay, run, graph.inputs)
        self._graphs[key] = graph
        return logits

    def _captured(self, run: Run, inputs: ForwardInputs) -> _Graph:
        while len(self._graphs) >= self.max_graphs:
            self._seen.pop(self._graphs.popitem(last=False)[0], None)
        static = _blank(inputs)
        logits = run(static)
        # All graphs write their logits to one buffer: each is read before the next replay.
        if self._logits is None or len(self._logits) < logits.numel():
            self._logits = torch.empty(logits.numel(), dtype=logits.dtype, device=logits.device)
        out = self._logits[: logits.numel()].view(logits.shape)

        def run_into(inputs: ForwardInputs) -> Tensor:
            return out.copy_(run(inputs))

        return _Graph(static, self.capture(run_into, static))

    def _was_seen(self, key: Hashable) -> bool:
        known = key in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > _SEEN_PER_GRAPH * self.max_graphs:
            self._seen.popitem(last=False)
        return known


def _report(error: RuntimeError, inputs: ForwardInputs, *, required: bool) -> None:
    B, Q = inputs.tokens.shape
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    message = f"A forward of {B} rows and {Q} columns cannot be replayed as a CUDA graph ({reason})"
    if required:
        raise RuntimeError(f"{message}. Pass graphs='auto' to run without graphs then.") from error
    warnings.warn(
        f"{message}, so all forwards of this model run without graphs: the same tokens, slower. "
        "To try none, pass graphs=False to load_model.",
        stacklevel=4,
    )


def _varying(inputs: ForwardInputs) -> list[Tensor]:
    """Lists what differs from one padded forward of a size to the next."""
    assert inputs.attend is not None
    assert isinstance(inputs.slots, Tensor)
    return [inputs.tokens, inputs.positions, inputs.wanted, inputs.attend, inputs.slots]


def _blank(inputs: ForwardInputs) -> ForwardInputs:
    """Returns tensors of the same sizes that read column 0 and write to the spare slot."""
    tokens, positions, wanted, attend, slots = map(torch.zeros_like, _varying(inputs))
    return ForwardInputs(tokens, positions, wanted, ~attend, inputs.kv_cache, slots)


def _key(inputs: ForwardInputs) -> Hashable:
    """Says which forwards are alike: sizes, and where keys and values are."""
    assert inputs.kv_cache is not None
    place = [(part.data_ptr(), part.shape, part.stride()) for part in inputs.kv_cache.buffers]
    return (*(part.shape for part in _varying(inputs)), *place)


def _check_replay(replay: Replay, run: Run, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
    """Runs a forward eagerly, then replays its graph, and returns the eager logits.

    The stored keys and values are zeroed in between, so that a graph that stores nothing, or
    stores elsewhere, is found. Afterwards the cache holds what the eager forward stored.

    Raises:
        RuntimeError: If logits, keys or values differ by more than rounding.
    """
    assert inputs.kv_cache is not None
    assert isinstance(inputs.slots, Tensor)
    buffers, slots = inputs.kv_cache.buffers, inputs.slots
    rows = torch.arange(len(slots), device=slots.device)[:, None]

    def stored() -> list[Float[Tensor, "B Q N H D"]]:
        return [buffer[:, rows, :, slots] for buffer in buffers]

    expected = run(inputs).clone()
    by_run = stored()
    for buffer in buffers:
        buffer[:, rows, :, slots] = 0.0
    logits = replay()
    by_replay = stored()
    for buffer, part in zip(buffers, by_run, strict=True):
        buffer[:, rows, :, slots] = part
    # Padding columns share the spare slot, and any of them may be the last to write there.
    real = slots > 0
    _compare("logit", logits, expected, real.gather(1, inputs.wanted))
    for found, wanted in zip(by_replay, by_run, strict=True):
        _compare("stored key or value", found, wanted, real)
    return expected


def _compare(
    name: str,
    found: Float[Tensor, "B Q *rest"],
    expected: Float[Tensor, "B Q *rest"],
    real: Bool[Tensor, "B Q"],
) -> None:
    shown = real.reshape(*real.shape, *[1] * (found.dim() - 2)).expand_as(found)
    difference, allowed = disagreement(found, expected, _TOLERANCES, shown)
    if difference > allowed:
        raise RuntimeError(
            f"a {name} of its first replay differs by {difference:.2g} from the same forward "
            f"without a graph, where {allowed:.2g} is put down to rounding"
        )

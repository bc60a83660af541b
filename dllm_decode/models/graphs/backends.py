"""Two ways to record work: a CUDA graph, and on a CPU the operations that such a graph would hold.

The second one is for tests. A value that Python has read is a constant in both, so that a mistake
gives a wrong token on a CPU too. Streams, memory, kernels and speed are CUDA's alone.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Buffers: TypeAlias = Mapping[str, Tensor]
"""Tensors by name, which keep their addresses. Work reads and writes them."""
Work: TypeAlias = Callable[[Buffers], Tensor]
Replay: TypeAlias = Callable[[], Tensor]
"""Runs recorded work on what its buffers hold now; the next call overwrites the result."""

_WARM_UPS = 2


class Backend(Protocol):
    """A way to record work."""

    def record(self, work: Work, buffers: Buffers) -> Replay:
        """Records `work(buffers)`, which is run on the way.

        Raises:
            RuntimeError: If the work cannot be recorded, or there is too little memory.
        """
        ...


class CudaBackend:
    """Records CUDA graphs, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work, buffers: Buffers) -> Replay:
        # Libraries allocate and choose kernels in their first calls, which no graph can hold.
        outer = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                work(buffers)
        outer.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those of a server, may call CUDA during the capture.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            result = work(buffers)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class TracingBackend:
    """Records the operations of work by `make_fx`, and refuses those that no CUDA graph can hold.

    Attributes:
        traces: One module for each recording.
    """

    def __init__(self) -> None:
        self.traces: list[torch.fx.GraphModule] = []

    def record(self, work: Work, buffers: Buffers) -> Replay:
        with _NoReads(), _NoWaits():  # type: ignore[no-untyped-call]  # in torch
            work(buffers)
        trace = make_fx(work)(buffers)
        self.traces.append(trace)

        def replay() -> Tensor:
            result: Tensor = trace(buffers)
            return result

        return replay


def backend_on(device: torch.device) -> Backend:
    """Returns the back end for the tensors of a device."""
    return CudaBackend(device) if device.type == "cuda" else TracingBackend()


class _NoWaits(TorchDispatchMode):
    """Refuses operations in which the host would wait for a GPU."""

    WAITING = frozenset(
        [
            "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select",
            "nonzero", "repeat_interleave", "unique_dim",
        ]
    )  # fmt: skip
    # CUDA calls `nonzero` inside of these if an index is a mask.
    INDEXING = frozenset(["_index_put_impl_", "index", "index_put", "index_put_"])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[-1].split(".")[0]
        by_mask = name in self.INDEXING and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if by_mask or name in self.WAITING:
            raise _read_by(func.name())
        return func(*args, **(kwargs or {}))


class _NoReads(TorchFunctionMode):
    """Refuses methods that read a tensor of a CPU without an operation."""

    READING = frozenset([Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.READING:
            raise _read_by(func.__name__)
        return func(*args, **(kwargs or {}))


def _read_by(name: str) -> RuntimeError:
    return RuntimeError(f"A graph must not read values of tensors, got {name}.")

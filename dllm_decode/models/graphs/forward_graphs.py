"""The graphs of one network: made when a kind of forward recurs, dropped when memory moves."""

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.core.user_warnings import warn_user
from dllm_decode.models.graphs.backends import Backend, Buffers, Replay, backend_on
from dllm_decode.models.graphs.graph_kinds import GraphKind, kind_of
from dllm_decode.models.graphs.lasting_cache import LastingCache
from dllm_decode.models.graphs.static_inputs import fill, inputs_in, new_buffers, result_of
from dllm_decode.models.network.operations import EAGER, compiled_pointwise
from dllm_decode.models.network.transformer import Transformer

_MOST_KINDS = 96
# A kind is recorded at this occurrence. Rarer ones are not worth their memory.
_OCCURRENCES = 3


class _Graph(NamedTuple):
    buffers: Buffers
    replay: Replay


class ForwardGraphs:
    """Runs the forwards of one network through graphs.

    Forwards of several threads take turns. Keys and values of one decode at a time are in a cache
    that graphs can read; other decodes of the same time are eager.

    Attributes:
        calls: Number of forwards of each kind that were replayed; `None`: of eager ones.
        is_fused: Rotation and SwiGLU are compiled in new graphs, which is faster on CUDA.
    """

    def __init__(self, transformer: Transformer, allocate: Callable[[int, int], KVCache]) -> None:
        """Begins without graphs.

        Args:
            transformer: The network.
            allocate: Returns a zeroed KV cache with this many rows and slots.

        Raises:
            ValueError: If the forwards of the network cannot be recorded.
        """
        _require_recordable(transformer)
        # Packed matrices are read by operations that only a CPU has.
        transformer.unpack()
        self.calls: Counter[GraphKind | None] = Counter()
        self.is_fused = transformer.device.type == "cuda"
        self._transformer = transformer
        self._allocate = allocate
        self._weights = [*transformer.parameters()]
        self._lock = Lock()
        self._seen: Counter[GraphKind] = Counter()
        self._failed: set[GraphKind] = set()
        self._most_kinds = _MOST_KINDS
        self._forget()

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Returns a zeroed cache: a part of the lasting one, or one of its own if that is lent."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._follow_weights()
            if self._cache.is_lent:
                return self._allocate(num_rows, num_slots)
            if not self._cache.has_room(num_rows, num_slots):
                # Graphs keep the old memory.
                self._graphs.clear()
                self._cache.replace(num_rows, num_slots)
            return self._cache.lend(num_rows, num_slots)

    def forward_groups(self, groups: Sequence[ForwardInputs]) -> Float[Tensor, "_ _ H"]:
        """Runs `Transformer.forward_groups`, through a graph if there is one."""
        with self._lock:
            hidden = self._replay(groups)
        return self._transformer.forward_groups(groups) if hidden is None else hidden

    # Tensors of inference mode cannot be written outside of it, nor traced.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _replay(self, groups: Sequence[ForwardInputs]) -> Float[Tensor, "_ _ H"] | None:
        """Returns the result of a graph; `None`: no graph serves this forward."""
        self._follow_weights()
        kind = kind_of(groups, self._cache)
        graph = None if kind is None else self._graph_of(kind, groups)
        if kind is None or graph is None:
            self.calls[None] += 1
            return None
        fill(graph.buffers, kind, groups)
        self.calls[kind] += 1
        return result_of(graph.replay(), groups)

    def _graph_of(self, kind: GraphKind, groups: Sequence[ForwardInputs]) -> _Graph | None:
        """Returns the graph of a kind, which is recorded now if the kind is common."""
        self._seen[kind] += 1
        is_common = self._seen[kind] >= _OCCURRENCES and len(self._graphs) < self._most_kinds
        if kind not in self._graphs and is_common and kind not in self._failed:
            self._record(kind, groups)
        return self._graphs.get(kind)

    def _record(self, kind: GraphKind, groups: Sequence[ForwardInputs]) -> None:
        """Records a kind; if that fails, its forwards stay eager."""
        device = self._transformer.device
        # Looked up here, because the first look-up copies from the CPU.
        frequencies = self._transformer.config.rope.frequencies(device)

        def work(buffers: Buffers) -> Tensor:
            return self._transformer.forward_groups([inputs_in(buffers)], frequencies, pointwise)

        try:
            pointwise = compiled_pointwise() if self.is_fused else EAGER
            buffers = new_buffers(kind, self._cache.whole, device)
            # Recording runs the work, which writes keys and values.
            fill(buffers, kind, groups)
            self._graphs[kind] = _Graph(buffers, self._backend.record(work, buffers))
        except torch.OutOfMemoryError:
            self._graphs.clear()
            self._most_kinds = 0
            warn_user("There is no memory for graphs: all forwards are eager.")
        except RuntimeError as error:
            if self.is_fused:
                self.is_fused = False
                warn_user(f"Graphs have no compiled operations: {error}")
                return self._record(kind, groups)
            if not self._failed:
                warn_user(f"A kind of forward cannot be recorded, and stays eager: {error}")
            self._failed.add(kind)

    def _follow_weights(self) -> None:
        """Drops all graphs if a weight has moved since they were made."""
        if self._addresses != [weight.data_ptr() for weight in self._weights]:
            self._forget()

    def _forget(self) -> None:
        """Drops all graphs, and the lasting cache, which has the weights' dtype and device."""
        self._addresses = [weight.data_ptr() for weight in self._weights]
        self._graphs: dict[GraphKind, _Graph] = {}
        self._cache = LastingCache(self._allocate)
        self._backend: Backend = backend_on(self._transformer.device)


def _require_recordable(transformer: Transformer) -> None:
    if transformer.route is not None or transformer.quantized not in (None, "fp8"):
        devices = sorted({str(device) for device in (transformer.route or {}).values()})
        raise ValueError(
            "A model with graphs must be on one device, with weights that are not quantised but by "
            f"'fp8', got quantize={transformer.quantized!r} and the devices {devices}. Load it "
            "with graphs=False."
        )
    dtype = transformer.embedding.weight.dtype
    has_experts = transformer.config.moe is not None
    if has_experts and transformer.device.type == "cuda" and dtype != torch.bfloat16:
        raise ValueError(
            f"A mixture of experts with graphs must be in bfloat16 on CUDA, got {dtype}. Pass "
            "dtype='bfloat16', or load it with graphs=False."
        )

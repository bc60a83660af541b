"""One transformer for every family: the differences are fields of `NetworkConfig`, not code."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.base import KVCache
from dllm_decode.models.network.attention import Norm
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext, for_queries, make_context, on_device
from dllm_decode.models.network.fused import Fused
from dllm_decode.models.network.layer import Layer
from dllm_decode.models.network.operations import LayerKV, Stream


class Route(NamedTuple):
    """Where the parts of a model are computed that is spread over devices."""

    embedding: torch.device
    layers: tuple[torch.device, ...]
    norm: torch.device
    head: torch.device


class Transformer(nn.Module):
    """Embedding, layers, final norm and head of a decoder that may attend in any direction.

    Attributes:
        shape: Its sizes.
        route: Where it is computed; `None`: all on the device that the weights are on.
        quantized: How the weights of the layers are stored; `None`: in their dtype.
        fused: Whether fused kernels are used on CUDA, see `operations_for`.
    """

    def __init__(self, shape: NetworkConfig) -> None:
        super().__init__()
        self.config = shape
        self.route: Route | None = None
        self.quantized: str | None = None
        self.fused: Fused = "auto"
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(
            shape.hidden_size, shape.norm_eps, weight_in_float32=shape.norm_weight_in_float32
        )
        if not shape.tied_head:
            self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(
        self,
        tokens: Int[Tensor, "B Q"],
        positions: Int[Tensor, "B Q"] | None = None,
        *,
        attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None = None,
        kv_cache: KVCache | None = None,
        slots: slice | Int[Tensor, "B Q"] | None = None,
        rows: slice | Int[Tensor, " B"] | None = None,
        wanted: Int[Tensor, "B W"] | None = None,
    ) -> Float[Tensor, "B _ H"]:
        """Returns the hidden states after the final norm, of all columns or of the wanted ones.

        Gradients flow, as long as there is no memory.

        Args:
            tokens: Ids of the computed columns.
            positions: Rotary positions; `None` counts from 0.
            attend: As in `ForwardInputs`.
            kv_cache: As in `ForwardInputs`.
            slots: As in `ForwardInputs`.
            rows: As in `ForwardInputs`.
            wanted: As in `ForwardInputs`; `None`: every column, in order.

        Raises:
            ValueError: If a memory comes without slots or slots without a memory.
        """
        if (kv_cache is None) != (slots is None):
            raise ValueError("A memory and slots go together: pass both, or neither.")
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        hidden: Tensor = self.embedding(tokens)
        plan = make_context(
            self.config,
            hidden.dtype,
            positions,
            attend=attend,
            kv_cache=kv_cache,
            slots=slots,
            rows=rows,
            fused=self.fused,
        )
        stream, last = Stream(hidden), len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            if self.route is not None:
                stream, plan = _at(self.route.layers[i], stream, plan)
            store = None
            if kv_cache is not None:
                assert plan.target is not None
                store = LayerKV(*kv_cache.layer(i), plan.target)
            if i == last and wanted is not None:
                wanted = wanted.to(stream.hidden.device)
                stream = layer(stream, for_queries(plan, wanted), store, wanted)
            else:
                stream = layer(stream, plan, store)
        if self.route is not None:
            stream, plan = _at(self.route.norm, stream, plan)
        normed: Tensor = self.norm(stream, plan.operations).normed
        return normed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        if self.route is not None:
            raise ValueError(
                "A model that is spread over devices stays as it was loaded, got a call that moves "
                "or converts it. Load it again with another device or dtype."
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        return self

    @property
    def device(self) -> torch.device:
        """Where tokens are expected."""
        return self.embedding.weight.device if self.route is None else self.route.embedding

    def parts(self) -> dict[str, Tensor]:
        """Names every tensor a checkpoint holds; views, so that writing to one sets the model.

        Fused projections appear by their parts: `layers.0.query.weight` is some rows of a
        parameter. A tied head has no entry.
        """
        named = {
            "embedding.weight": self.embedding.weight.data,
            "norm.weight": self.norm.weight.data,
        }
        if not self.config.tied_head:
            named["head.weight"] = self.lm_head.weight.data
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            named |= {f"layers.{i}.{name}": part for name, part in layer.parts().items()}
        return named

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Turns hidden states into logits, raw and unshifted."""
        if self.route is not None:
            hidden = hidden.to(self.route.head)
        # The module is called, not its weight: a hook may have to fetch that.
        tied = self.config.tied_head
        logits: Tensor = F.linear(hidden, self.embedding.weight) if tied else self.lm_head(hidden)
        return logits


def _at(device: torch.device, stream: Stream, plan: LayerContext) -> tuple[Stream, LayerContext]:
    hidden, update = stream
    if hidden.device == device:
        return stream, plan
    # Added up first: one tensor moves, not two.
    hidden = hidden if update is None else hidden + update
    return Stream(hidden.to(device)), on_device(plan, device, hidden.dtype)

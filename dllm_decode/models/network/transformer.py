"""One transformer for every family: the differences are fields of `NetworkConfig`, not code."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import (
    LayerContext,
    for_queries,
    join_columns,
    make_context,
    on_device,
)
from dllm_decode.models.network.eight_bits import EightBitLinear
from dllm_decode.models.network.layer import Layer, Norm, take_wanted
from dllm_decode.models.network.operations import EAGER, Pointwise
from dllm_decode.models.network.packed import Linear, Packable, can_pack
from dllm_decode.models.network.tensor_names import tensors_of


class Transformer(nn.Module):
    """Embedding, layers, final norm and head of a decoder that may attend in any direction.

    Attributes:
        config: Its sizes and switches.
        route: Where its parts are computed, by name: "embedding", "layers.0" and so on, "norm" and,
            if the head is not tied, "lm_head". `None`: all on the device that the weights are on.
        quantized: How the weights of the layers are stored; `None`: in their dtype.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.route: Mapping[str, torch.device] | None = None
        self.quantized: str | None = None
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, n) for n in range(config.num_layers))
        self.norm = Norm(
            config.hidden_size, config.norm_eps, weight_in_float32=config.norm_weight_in_float32
        )
        self.lm_head: nn.Module | None = None
        if not config.tied_head:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self._packables = [part for part in self.modules() if isinstance(part, Packable)]

    def pack(self) -> None:
        """Packs the matrices if that makes forwards faster, see `Packable`."""
        if not self._packables or self._packables[0].is_packed or self.route is not None:
            return
        if can_pack(next(self._packables[0].parameters())):
            for part in self._packables:
                part.pack()

    def unpack(self) -> None:
        """Puts all weights back into their parameters."""
        for part in self._packables:
            part.unpack()

    @torch.inference_mode(False)
    @torch.no_grad()
    def store_in_8_bits(self, part: nn.Module, kind: type[EightBitLinear]) -> None:
        """Replaces each `Linear` of a part of the network for good."""
        self.unpack()
        for parent in part.modules():
            for name, child in [*parent.named_children()]:
                if isinstance(child, Linear):
                    parent.add_module(name, kind(child.weight, child.bias))
        self._packables = [part for part in self.modules() if isinstance(part, Packable)]

    def forward(
        self,
        tokens: Int[Tensor, "B Q"],
        positions: Int[Tensor, "B Q"] | None = None,
        *,
        attend: Bool[Tensor, "B Q Q"] | Bool[Tensor, "B 1 Q"] | None = None,
        wanted: Int[Tensor, "B W"] | None = None,
    ) -> Float[Tensor, "B _ H"]:
        """Returns the hidden states after the final norm, of all columns or of the wanted ones.

        The arguments are those of `ForwardInputs`; positions of `None` count from 0.

        Raises:
            ValueError: If experts are chosen by block, and the columns are not whole blocks.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        _require_whole_blocks(positions, self.config.routing_block_length)
        wanted_or_all = positions if wanted is None else wanted
        return self._run([ForwardInputs(tokens, positions, wanted_or_all, attend)], [wanted])

    def forward_groups(
        self,
        groups: Sequence[ForwardInputs],
        frequencies: Float[Tensor, " F"] | None = None,
        pointwise: Pointwise = EAGER,
    ) -> Float[Tensor, "_ _ H"]:
        """Returns the wanted columns after the final norm, as `join_columns` joins them.

        Args:
            groups: The inputs.
            frequencies: Those of `config.rope` on the device of the positions; `None`: they are
                looked up, which a compiled forward cannot do.
            pointwise: How rotation and SwiGLU are computed.

        Raises:
            ValueError: If a KV cache comes without slots, or slots without a KV cache.
        """
        return self._run(groups, [group.wanted for group in groups], frequencies, pointwise)

    def _run(
        self,
        inputs: Sequence[ForwardInputs],
        wanted: Sequence[Int[Tensor, "_ _"] | None],
        frequencies: Float[Tensor, " F"] | None = None,
        pointwise: Pointwise = EAGER,
    ) -> Float[Tensor, "_ _ H"]:
        """Passes the joined columns of all groups through the layers and the final norm."""
        hidden: Tensor = self.embedding(join_columns([group.tokens for group in inputs]))
        if frequencies is None:
            frequencies = self.config.rope.frequencies(inputs[0].positions.device)
        groups: Sequence[LayerContext] = [
            make_context(self.config, hidden.dtype, group, frequencies, pointwise)
            for group in inputs
        ]
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            if self.route is not None:
                hidden, groups = _at(self.route[f"layers.{i}"], hidden, groups)
            if i == last and self.config.routing_block_length == 1:
                groups = [for_queries(*pair) for pair in zip(groups, wanted, strict=True)]
            hidden = layer(hidden, groups)
        if self.config.routing_block_length > 1:
            groups = [for_queries(*pair) for pair in zip(groups, wanted, strict=True)]
            hidden = take_wanted(hidden, groups)
        if self.route is not None:
            hidden, groups = _at(self.route["norm"], hidden, groups)
        normed: Tensor = self.norm(hidden)
        return normed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        if self.route is not None or self.quantized is not None:
            raise ValueError(
                "A model that is spread over devices, or quantised, stays as it was loaded, got a "
                "call that moves or converts it. Load it again with another device or dtype."
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        return self

    @property
    def device(self) -> torch.device:
        """Where tokens are expected."""
        return self.embedding.weight.device if self.route is None else self.route["embedding"]

    def parts(self, joined: Collection[str] = ()) -> dict[str, Tensor]:
        """Returns every tensor of a checkpoint by name, as views: writing to a view sets the model.

        Names are those of `tensors_of`, as in `layers.0.gate.weight`. A tied head has no entry.

        Args:
            joined: Names of tensors, with {n} and {e} for numbers. If `layers.{n}.qkv.weight` or
                `layers.{n}.gate_up.weight` is one of them, this tensor is one part.
        """
        self.unpack()
        named = {
            "embedding.weight": self.embedding.weight.data,
            "norm.weight": self.norm.weight.data,
        }
        if not self.config.tied_head:
            assert isinstance(self.lm_head, Linear)
            named["head.weight"] = self.lm_head.weight.data
        for i, layer in enumerate(self.layers):
            rows = self.config.qkv_rows
            named |= tensors_of(layer, f"layers.{i}.", qkv_rows=rows, joined=joined)
        return named

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Turns hidden states into logits, raw and unshifted."""
        if self.route is not None:
            hidden = hidden.to(self.route["embedding" if self.lm_head is None else "lm_head"])
        if self.lm_head is None:
            return F.linear(hidden, self.embedding.weight)
        logits: Tensor = self.lm_head(hidden)
        return logits


def _require_whole_blocks(positions: Int[Tensor, "B Q"], length: int) -> None:
    """Raises ValueError unless the columns are whole blocks of a model that routes by block."""
    if length == 1:
        return
    expected = positions[:, ::length] // length * length
    expected = expected.repeat_interleave(length, 1)[:, : positions.shape[1]]
    expected = expected + torch.arange(positions.shape[1], device=positions.device) % length
    if positions.shape[1] % length or not torch.equal(positions, expected):
        raise ValueError(
            f"Columns must be whole blocks of {length}, which choose their experts together, got "
            "others. Such a model is decoded, but neither trained nor scored on other columns."
        )


def _at(
    device: torch.device, hidden: Float[Tensor, "_ _ H"], groups: Sequence[LayerContext]
) -> tuple[Float[Tensor, "_ _ H"], Sequence[LayerContext]]:
    if hidden.device == device:
        return hidden, groups
    return hidden.to(device), [on_device(group, device) for group in groups]

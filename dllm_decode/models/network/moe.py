"""A mixture of experts: a router sends every token to a few of many MLPs.

Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", https://arxiv.org/abs/1701.06538;
groups, sigmoid scores and the bias of the choice: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
https://arxiv.org/abs/2412.19437, section 2.1.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.mlp import MLP
from dllm_decode.models.network.operations import Operations


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        weights: What the experts' outputs are multiplied by, in float32 at least.
        experts: Which experts these are.
    """

    weights: Float[Tensor, "T A"]
    experts: Int[Tensor, "T A"]


class Router(nn.Module):
    """Chooses each token's experts, and their weights."""

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.num_experts, hidden_size))
        if config.has_selection_bias:
            self.selection_bias = nn.Parameter(torch.zeros(config.num_experts, dtype=torch.float32))

    def forward(self, hidden: Float[Tensor, "T H"]) -> Routing:
        """Chooses by the scores, of the open groups only."""
        config = self.config
        # Never in half precision: experts whose scores differ by less would tie.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        if config.routes_in_float32:
            logits = F.linear(hidden.to(wide), self.weight.to(wide))
        else:
            logits = F.linear(hidden, self.weight).to(wide)
        scores = logits.softmax(-1) if config.score == "softmax" else logits.sigmoid()
        preference = scores
        if config.has_selection_bias:
            preference = scores + self.selection_bias
        experts = self._in_open_groups(preference).topk(config.num_active, -1).indices
        weights = scores.gather(-1, experts)
        if config.normalised:
            # Sigmoids may all be 0; a softmax' best scores never are.
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(weights * config.scale, experts)

    def _in_open_groups(self, preference: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        """Sets experts of closed groups to -inf."""
        config = self.config
        if config.num_open_groups == config.num_groups:
            return preference
        grouped = preference.unflatten(-1, (config.num_groups, -1))
        best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        closed = torch.ones_like(best, dtype=torch.bool)
        closed.scatter_(-1, best.topk(config.num_open_groups, -1).indices, False)
        limited: Tensor = grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)
        return limited

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        if not self.config.has_selection_bias:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
            return self
        bias = self.selection_bias.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        # Checkpoints keep it in float32, however the model is converted.
        if self.selection_bias.dtype.itemsize < bias.dtype.itemsize <= torch.float32.itemsize:
            device = self.selection_bias.device
            kept = torch.empty_like(bias, device=device) if bias.is_meta else bias.to(device)
            self.selection_bias.data = kept
        return self

    def parts(self) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        named = {"weight": self.weight.data}
        if self.config.has_selection_bias:
            named["selection_bias"] = self.selection_bias.data
        return named


class Experts(nn.Module):
    """The routed experts of a layer, SwiGLUs whose weights are stacked.

    On CUDA all of them are one grouped product for each of the two matrices: tokens are sorted by
    expert, so that each expert's tokens are neighbours, and where one ends is known on the device
    alone: no loop, nothing to wait for, and the forward can be captured. `grouped_mm` is torch's
    own, which transformers' experts call too. Elsewhere a loop visits the experts that have tokens,
    and leaves the weights of the others unread.
    """

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        E, M = config.num_experts, config.hidden_size
        self.gate_up = nn.Parameter(torch.zeros(E, 2 * M, hidden_size))
        self.down = nn.Parameter(torch.zeros(E, hidden_size, M))

    def forward(
        self, hidden: Float[Tensor, "T H"], routing: Routing, operations: Operations
    ) -> Float[Tensor, "T H"]:
        """Adds up what each token's experts make of it."""
        weights = routing.weights
        if not (self.config.weighs_in_float32 or self.config.mixes_in_float32):
            weights = weights.to(hidden.dtype)
        # Stable: the same batch is added up in the same order, whenever it comes.
        order = routing.experts.flatten().argsort(stable=True)
        compute = self._grouped if _can_group(hidden) else self._one_by_one
        return compute(hidden, Routing(weights, routing.experts), order, operations)

    def _grouped(
        self,
        hidden: Float[Tensor, "T H"],
        routing: Routing,
        order: Int[Tensor, " P"],
        operations: Operations,
    ) -> Float[Tensor, "T H"]:
        experts = routing.experts.flatten()[order]
        numbers = torch.arange(self.config.num_experts, device=hidden.device)
        ends = torch.searchsorted(experts, numbers, right=True).int()
        columns = hidden[order // self.config.num_active]
        gate_up = F.grouped_mm(columns, self.gate_up.mT, offs=ends)
        mixed = operations.swiglu(gate_up[None])[0]
        sorted_outputs = F.grouped_mm(mixed, self.down.mT, offs=ends)
        outputs = torch.empty_like(sorted_outputs)
        outputs[order] = sorted_outputs
        products = outputs.unflatten(0, routing.experts.shape) * routing.weights[..., None]
        summed: Tensor = products.to(self._sum_dtype(hidden)).sum(1).to(hidden.dtype)
        return summed

    def _one_by_one(
        self,
        hidden: Float[Tensor, "T H"],
        routing: Routing,
        order: Int[Tensor, " P"],
        operations: Operations,
    ) -> Float[Tensor, "T H"]:
        mixed = torch.zeros_like(hidden, dtype=self._sum_dtype(hidden))
        weights = routing.weights.flatten()[order, None]
        tokens = order // self.config.num_active
        counts = routing.experts.flatten().bincount(minlength=self.config.num_experts).tolist()
        end = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            mine = slice(end, end + count)
            end += count
            gate_up = F.linear(hidden[tokens[mine]], self.gate_up[expert])
            output = F.linear(operations.swiglu(gate_up[None])[0], self.down[expert])
            mixed = mixed.index_add(0, tokens[mine], (output * weights[mine]).to(mixed.dtype))
        return mixed.to(hidden.dtype)

    def _sum_dtype(self, hidden: Tensor) -> torch.dtype:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return wide if self.config.mixes_in_float32 else hidden.dtype

    def parts(self) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        named = {}
        for e in range(self.config.num_experts):
            gate, up = self.gate_up.data[e].chunk(2)
            named[f"{e}.gate.weight"] = gate
            named[f"{e}.up.weight"] = up
            named[f"{e}.down.weight"] = self.down.data[e]
        return named


class MoE(nn.Module):
    """Router, routed experts, and an expert that every token goes to if there is one."""

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.router = Router(config, hidden_size)
        self.experts = Experts(config, hidden_size)
        self.shared = (
            MLP(hidden_size, config.shared_hidden_size) if config.shared_hidden_size else None
        )

    def forward(
        self, hidden: Float[Tensor, "B Q H"], operations: Operations
    ) -> Float[Tensor, "B Q H"]:
        """Maps every column by itself."""
        tokens = hidden.flatten(0, 1)
        mixed: Tensor = self.experts(tokens, self.router(tokens), operations).view_as(hidden)
        return mixed if self.shared is None else mixed + self.shared(hidden, operations)

    def parts(self) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        named = {f"router.{name}": part for name, part in self.router.parts().items()}
        named |= {f"experts.{name}": part for name, part in self.experts.parts().items()}
        if self.shared is not None:
            named |= {f"shared.{name}": part for name, part in self.shared.parts().items()}
        return named


def _can_group(hidden: Tensor) -> bool:
    # In other dtypes torch would read back where each group ends, and wait for it.
    return hidden.is_cuda and hidden.dtype == torch.bfloat16

"""The MLP of a layer, or a mixture of experts: a router sends every token to a few of many MLPs.

Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", https://arxiv.org/abs/1701.06538;
groups, sigmoid scores and the bias of the choice: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
https://arxiv.org/abs/2412.19437, section 2.1.2.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.operations import EAGER, Pointwise, swiglu
from dllm_decode.models.network.packed import Linear, Packable
from dllm_decode.models.network.shares import equal_shares, on_threads

# If a thread waits for a busy processor, the other threads compute its later shares.
_SHARES_PER_THREAD = 4


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)).

    Source: Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202.
    """

    def __init__(self, hidden_size: int, mlp_hidden_size: int) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * mlp_hidden_size, bias=False)
        self.down = Linear(mlp_hidden_size, hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "B Q H"], pointwise: Pointwise = EAGER
    ) -> Float[Tensor, "B Q H"]:
        """Maps every column by itself."""
        mixed: Tensor = self.down(pointwise.swiglu(self.gate_up(hidden)))
        return mixed


class Routing(NamedTuple):
    """The experts of each token, and their weights.

    Attributes:
        weights: Factors of the experts' outputs, in float32 at least.
        experts: Numbers of the experts.
    """

    weights: Float[Tensor, "T A"]
    experts: Int[Tensor, "T A"]


class ExpertRouter(nn.Module):
    """Chooses each token's experts, and their weights."""

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.num_experts, hidden_size))
        if config.has_selection_bias:
            self.selection_bias = nn.Parameter(torch.zeros(config.num_experts, dtype=torch.float32))

    def forward(self, hidden: Float[Tensor, "T H"]) -> Routing:
        """Chooses the experts with the best scores in the open groups, or in the block's pool."""
        config = self.config
        # Never in half precision, in which experts with close scores would tie.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        if config.routes_in_float32:
            logits = F.linear(hidden.to(wide), self.weight.to(wide))
        else:
            logits = F.linear(hidden, self.weight).to(wide)
        scores = logits.softmax(-1) if config.score == "softmax" else logits.sigmoid()
        preference = scores
        if config.has_selection_bias:
            preference = scores + self.selection_bias
        limited = self._in_pool if config.pool_size else self._in_open_groups
        experts = limited(preference).topk(config.num_active, -1).indices
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

    def _in_pool(self, preference: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        """Sets experts to -inf that are not in the pool of their block.

        The pool of a block are the experts with the greatest scores of any of its tokens.

        Source: LLaDA 2.2 technical report, section 2.2, equation 1,
            https://github.com/inclusionAI/LLaDA2.X.
        """
        by_block = preference.unflatten(0, (-1, self.config.block_length))
        pool = by_block.amax(1).topk(self.config.pool_size, -1).indices
        closed = torch.ones_like(by_block[:, 0], dtype=torch.bool).scatter_(-1, pool, False)
        limited: Tensor = by_block.masked_fill(closed[:, None], -torch.inf).flatten(0, 1)
        return limited

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExpertRouter":
        bias = self.selection_bias.data if self.config.has_selection_bias else None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        # The bias stays in float32, as in checkpoints, when the model is converted.
        if bias is not None and (
            self.selection_bias.dtype.itemsize < bias.dtype.itemsize <= torch.float32.itemsize
        ):
            device = self.selection_bias.device
            converted = torch.empty_like(bias, device=device) if bias.is_meta else bias.to(device)
            self.selection_bias.data = converted
        return self


class Experts(Packable):
    """The routed experts of a layer, SwiGLUs whose weights are stacked.

    Tokens are sorted by expert, so that each expert's tokens are neighbours. `grouped_mm` of torch,
    which transformers' experts call too, computes one product for each of the two matrices. On CUDA
    only the device knows where an expert's tokens end, so that nothing waits and the forward can be
    recorded; there `grouped_mm` has bfloat16 alone.

    On a CPU, `grouped_mm` multiplies expert by expert, and does not read the weights of experts
    without tokens. A loop does the same for packed weights, and in types that `grouped_mm` lacks.
    One such product takes less time than waking a second thread, so that each thread of torch
    computes some of the experts by itself.
    """

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        E, M = config.num_experts, config.hidden_size
        self.gate_up = nn.Parameter(torch.zeros(E, 2 * M, hidden_size))
        self.down = nn.Parameter(torch.zeros(E, hidden_size, M))

    def forward(self, hidden: Float[Tensor, "T H"], routing: Routing) -> Float[Tensor, "T H"]:
        """Returns the weighted sum of the outputs of each token's experts."""
        weights = routing.weights
        if not (self.config.weighs_in_float32 or self.config.mixes_in_float32):
            weights = weights.to(hidden.dtype)
        products = self._sorted(hidden, routing.experts) * weights[..., None]
        if not self.config.mixes_in_float32:
            products = products.to(hidden.dtype)
        summed: Tensor = products.sum(1).to(hidden.dtype)
        return summed

    def _sorted(
        self, hidden: Float[Tensor, "T H"], experts: Int[Tensor, "T A"]
    ) -> Float[Tensor, "T A H"]:
        """Maps each token by its own experts."""
        # Stable, so that equal batches are added up in the same order.
        order = experts.flatten().argsort(stable=True)
        numbers = torch.arange(self.config.num_experts, device=hidden.device)
        ends = torch.searchsorted(experts.flatten()[order], numbers, right=True).int()
        sorted_outputs = self._outputs(hidden[order // self.config.num_active], ends)
        outputs = torch.empty_like(sorted_outputs)
        outputs[order] = sorted_outputs
        by_token: Tensor = outputs.unflatten(0, experts.shape)
        return by_token

    def _outputs(
        self, columns: Float[Tensor, "P H"], ends: Int[Tensor, " E"]
    ) -> Float[Tensor, "P H"]:
        """Maps each column by its expert; columns are sorted by expert."""
        if torch.is_grad_enabled():
            self.unpack()
        groups = self._can_group(columns)
        work = self._grouped if groups and not self.is_packed else self._one_by_one
        # A training step has enough columns to divide each product among the threads, and a
        # compiled forward is one graph.
        if (
            columns.is_cuda
            or not groups
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
        ):
            return work(columns, ends, slice(None))
        num_threads = torch.get_num_threads()
        if num_threads == 1:
            return work(columns, ends, slice(None))
        shares = equal_shares(ends, _SHARES_PER_THREAD * num_threads)
        bounds = [0, *ends[[share.stop - 1 for share in shares]].tolist()]
        pieces = [
            (columns[start:end], ends[share] - start, share)
            for share, start, end in zip(shares, bounds, bounds[1:], strict=False)
        ]
        return torch.cat(on_threads(work, pieces))

    def _grouped(
        self,
        columns: Float[Tensor, "P H"],
        ends: Int[Tensor, " E"],
        share: slice,
    ) -> Float[Tensor, "P H"]:
        """Maps columns by some of the experts, with one product for each of the two matrices."""
        gate_up = F.grouped_mm(columns, self.gate_up[share].mT, offs=ends)
        mixed = swiglu(gate_up[None])[0]
        return F.grouped_mm(mixed, self.down[share].mT, offs=ends)

    def _one_by_one(
        self,
        columns: Float[Tensor, "P H"],
        ends: Int[Tensor, " E"],
        share: slice,
    ) -> Float[Tensor, "P H"]:
        """Maps columns by some of the experts, with two products for each expert."""
        counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
        chosen = [(e, n) for e, n in zip(range(len(self.down))[share], counts, strict=True) if n]
        if not chosen:
            return columns[:0]
        experts, sizes = zip(*chosen, strict=True)
        gate_up = self._each(columns, sizes, "gate_up", experts)
        return self._each(swiglu(gate_up[None])[0], sizes, "down", experts)

    def _each(
        self,
        columns: Float[Tensor, "P I"],
        sizes: Sequence[int],
        name: str,
        experts: Sequence[int],
    ) -> Float[Tensor, "P O"]:
        """Multiplies `sizes` columns by the matrices of the experts."""
        parts = zip(columns.split(list(sizes)), experts, strict=True)
        return torch.cat([self.multiply(part, name, expert) for part, expert in parts])

    def _can_group(self, columns: Tensor) -> bool:
        if columns.is_cuda:
            # In other dtypes torch would read back where each group ends, and wait for it.
            return columns.dtype == torch.bfloat16
        # `grouped_mm` needs rows that begin at multiples of 16 bytes.
        is_aligned = all(
            size * columns.itemsize % 16 == 0 for size in (columns.shape[1], self.down.shape[2])
        )
        is_narrow = columns.dtype in (torch.bfloat16, torch.float16, torch.float32)
        return columns.device.type == "cpu" and is_narrow and is_aligned


class MoE(nn.Module):
    """Router, routed experts, and an expert that every token goes to if there is one."""

    def __init__(self, config: MoEConfig, hidden_size: int) -> None:
        super().__init__()
        self.block_length = config.block_length
        self.router = ExpertRouter(config, hidden_size)
        self.experts = Experts(config, hidden_size)
        self.shared = (
            MLP(hidden_size, config.shared_hidden_size) if config.shared_hidden_size else None
        )

    def forward(
        self, hidden: Float[Tensor, "B Q H"], pointwise: Pointwise = EAGER
    ) -> Float[Tensor, "B Q H"]:
        """Maps each column, once blocks have chosen experts; `pointwise` is of the shared one."""
        if hidden.shape[1] % self.block_length:
            raise ValueError(
                f"A forward must compute whole blocks of {self.block_length} columns, which choose "
                f"their experts together, got {hidden.shape[1]} columns."
            )
        tokens = hidden.flatten(0, 1)
        mixed: Tensor = self.experts(tokens, self.router(tokens)).view_as(hidden)
        return mixed if self.shared is None else mixed + self.shared(hidden, pointwise)

"""Muon for matrices, AdamW for the rest."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients that the authors tuned for fast growth of small singular values."""

MOMENTUM = 0.95


class Muon(Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix, roughly.

    For a gradient g: m <- 0.95 m + 0.05 g, u = 0.95 m + 0.05 g (Nesterov's look-ahead), and the
    weights move by -lr sqrt(max(1, rows / columns)) orthogonalise(u).

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    https://kellerjordan.github.io/posts/muon/.

    Differs: A fused projection is orthogonalised part by part, each of `num_parts` equal pieces of
    its rows for itself; pieces of one shape are orthogonalised together.

    Args:
        params: Matrices, or groups of them with their own `num_parts`.
        lr: Learning rate.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(params, {"lr": lr, "num_parts": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # there is none
        """Moves the weights once; closures are not supported."""
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = defaultdict(list)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                update = weight.grad.lerp(momentum, MOMENTUM)
                parts = (one.chunk(group["num_parts"]) for one in (weight, update))
                for piece, direction in zip(*parts, strict=True):
                    by_shape[piece.shape].append((piece, direction, group["lr"]))
        for (rows, columns), moves in by_shape.items():
            stacked = orthogonalise(torch.stack([direction for _, direction, _ in moves]))
            for (piece, _, lr), direction in zip(moves, stacked, strict=True):
                piece.add_(direction, alpha=-lr * max(1, rows / columns) ** 0.5)


def orthogonalise(matrices: Float[Tensor, "N R C"], num_steps: int = 5) -> Float[Tensor, "N R C"]:
    """Drives all singular values of each matrix towards 1, to within about 0.3.

    A quintic Newton-Schulz iteration, in bfloat16 on a GPU: X <- a X + (b A + c A A) X, A = X X^T.
    """
    a, b, c = NEWTON_SCHULZ
    kept = matrices.dtype
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(num_steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = (x.transpose(1, 2) if tall else x).to(kept)
    return found


def make_optimisers(
    model: nn.Module, *, matrix_lr: float, other_lr: float
) -> tuple[Optimizer, ...]:
    """Gives the matrices of the layers to Muon; embeddings, head and norms to AdamW.

    Args:
        model: Projections named `qkv` and `gate_up` are fused of three and two.
        matrix_lr: Learning rate of Muon.
        other_lr: Learning rate of AdamW.
    """
    num_parts = {"qkv": 3, "gate_up": 2}
    groups: dict[int, list[Tensor]] = defaultdict(list)
    others = []
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and ".layers." in f".{name}":
            groups[num_parts.get(name.split(".")[-2], 1)].append(weight)
        else:
            others.append(weight)
    matrices = [{"params": weights, "num_parts": parts} for parts, weights in groups.items()]
    return (
        Muon(matrices, lr=matrix_lr),
        AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    )

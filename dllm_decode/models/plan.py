"""What all layers of one forward share, made once: rotations, mask, where keys and values go."""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.models.shape import Shape


class Target(NamedTuple):
    """Where fresh keys and values go."""

    rows: slice | Int[Tensor, " B"]
    slots: slice | Int[Tensor, "B Q"]


class Plan(NamedTuple):
    """What all layers of one forward share.

    Attributes:
        cos: Of the angle that each column is rotated by.
        sin: As `cos`.
        bias: Added to the attention scores; `None`: everything sees everything.
        target: Where fresh keys and values go; `None`: there is no memory.
    """

    cos: Float[Tensor, "B 1 Q D"]
    sin: Float[Tensor, "B 1 Q D"]
    bias: Float[Tensor, "B 1 _ K"] | None
    target: Target | None


def make_plan(
    shape: Shape,
    dtype: torch.dtype,
    positions: Int[Tensor, "B Q"],
    *,
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None,
    slots: slice | Int[Tensor, "B Q"] | None,
    rows: slice | Int[Tensor, " B"] | None,
) -> Plan:
    """Prepares a forward of a model of that shape and dtype; the rest is as in `Inputs`."""
    cos, sin = _rotations(positions, shape, dtype)
    bias = None if attend is None else _as_bias(attend, dtype)
    target = None if slots is None else Target(slice(None) if rows is None else rows, slots)
    return Plan(cos, sin, bias, target)


def for_queries(plan: Plan, wanted: Int[Tensor, "B W"]) -> Plan:
    """Keeps the mask of the wanted queries only; keys and values stay those of all columns."""
    bias = plan.bias
    if bias is None or bias.shape[2] == 1:
        return plan
    index = wanted[:, None, :, None].expand(-1, -1, -1, bias.shape[3])
    return plan._replace(bias=bias.gather(2, index))


def on_device(plan: Plan, device: torch.device) -> Plan:
    """Moves a plan to where the next layers are."""
    target = plan.target
    if target is not None:
        rows, slots = target
        target = Target(
            rows if isinstance(rows, slice) else rows.to(device),
            slots if isinstance(slots, slice) else slots.to(device),
        )
    bias = None if plan.bias is None else plan.bias.to(device)
    return Plan(plan.cos.to(device), plan.sin.to(device), bias, target)


@lru_cache(maxsize=32)
def _frequencies(head_dim: int, theta: float, device: torch.device) -> Float[Tensor, " D"]:
    # Not a buffer: building on the meta device leaves non-persistent buffers uninitialised, which
    # loads without complaint and answers NaN. On the CPU first: `pow` differs between devices.
    with torch.inference_mode(False), torch.device("cpu"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return (1.0 / theta**exponents).to(device)


def _rotations(
    positions: Int[Tensor, "B Q"], shape: Shape, dtype: torch.dtype
) -> tuple[Float[Tensor, "B 1 Q D"], Float[Tensor, "B 1 Q D"]]:
    frequencies = _frequencies(shape.head_dim, shape.rope_theta, positions.device)
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), -1)
    kept = torch.float32 if shape.rope_in_float32 else dtype
    return angles.cos().to(kept), angles.sin().to(kept)


def _as_bias(
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"], dtype: torch.dtype
) -> Float[Tensor, "B 1 _ K"]:
    # The least finite number, not -inf: a query that sees nothing answers something finite. Once
    # a forward: given booleans, attention would convert them in every layer.
    bias = torch.zeros(attend.shape, dtype=dtype, device=attend.device)
    return bias.masked_fill_(~attend, torch.finfo(dtype).min)[:, None]

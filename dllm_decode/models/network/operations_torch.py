"""The operations of a layer in torch: on every device, in every dtype, with gradients."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models.network.operations import (
    Heads,
    KVSlots,
    LayerKV,
    Normed,
    Projected,
    Rotation,
    Scaling,
    Stream,
)


def add_norm(stream: Stream, scaling: Scaling) -> Normed:
    """See `Operations`; the norm is computed in float32."""
    hidden = stream.hidden if stream.update is None else stream.hidden + stream.update
    return Normed(hidden, _norm(hidden, scaling))


def rotate_and_store(projected: Projected, rotation: Rotation, store: LayerKV | None) -> Heads:
    """See `Operations`."""
    heads, num_kv_heads, scalings = projected
    num_heads = heads.shape[2] - 2 * num_kv_heads
    sizes = [num_heads, num_kv_heads]
    turned, value = heads.transpose(1, 2).split([sum(sizes), num_kv_heads], 1)
    if scalings is not None:
        parts = zip(turned.split(sizes, 1), scalings, strict=True)
        turned = torch.cat([_norm(part, scaling) for part, scaling in parts], 1)
    query, key = _rotate(turned, rotation).split(sizes, 1)
    if store is not None:
        key = _store(store.keys, key, store.target)
        value = _store(store.values, value, store.target)
    return Heads(query, key, value)


def attend(heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None) -> Float[Tensor, "B Q C"]:
    """See `Operations`."""
    query, key, value = heads
    # Query heads that share a key head become further queries of it: nothing causal is left that
    # would forbid it, and neither keys nor values are repeated, on any kernel.
    group = query.shape[1] // key.shape[1]
    if group > 1:
        query = rearrange(query, "b (g n) q d -> b g (n q) d", n=group)
    mixed = _attention(query, key, value, bias)
    if group > 1:
        mixed = rearrange(mixed, "b g (n q) d -> b (g n) q d", n=group)
    return mixed.transpose(1, 2).flatten(2)


def swiglu(gate_up: Float[Tensor, "B Q C"]) -> Float[Tensor, "B Q M"]:
    """See `Operations`."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _attention(
    query: Float[Tensor, "B G Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    bias: Float[Tensor, "B 1 _ K"] | None,
) -> Float[Tensor, "B G Q D"]:
    if query.device.type != "cpu" or not query.requires_grad:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    # The backward of torch's kernel is slow on a CPU; written out, `torch.compile` fuses this.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if bias is not None:
        # Finite, so that a column of padding that sees nothing does not become NaN.
        scores = scores + bias.to(scores.dtype).clamp(min=torch.finfo(scores.dtype).min)
    mixed: Tensor = scores.softmax(-1).to(value.dtype) @ value
    return mixed


def _norm(hidden: Float[Tensor, "... H"], scaling: Scaling) -> Float[Tensor, "... H"]:
    size = scaling.weight.shape
    if scaling.in_float32:
        return F.rms_norm(hidden, size, scaling.weight, scaling.eps)
    return F.rms_norm(hidden, size, None, scaling.eps) * scaling.weight


def _rotate(heads: Float[Tensor, "B H Q D"], rotation: Rotation) -> Float[Tensor, "B H Q D"]:
    dim = rotation.cos.shape[-1]
    if dim < heads.shape[-1]:
        turned = _rotate(heads[..., :dim], rotation)
        return torch.cat((turned, heads[..., dim:]), -1)
    first, second = heads.chunk(2, -1)
    # Float32 tables lift the product to float32 by themselves.
    turned = heads * rotation.cos + torch.cat((second, first), -1) * rotation.sin
    return turned.to(heads.dtype)


def _store(
    store: Float[Tensor, "R G K D"], fresh: Float[Tensor, "B G Q D"], target: KVSlots
) -> Float[Tensor, "B G K D"]:
    """Writes in place, and returns the rows of this call: a view where they are a slice."""
    if isinstance(target.slots, slice):
        store[target.rows, :, target.slots] = fresh
    else:
        store[target.row_index, :, target.slots] = fresh.transpose(1, 2)
    return store[target.rows]

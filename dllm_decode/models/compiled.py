"""The forward of a network under `torch.compile`: one graph without breaks, for all shapes.

Source: gpt-fast, https://github.com/pytorch-labs/gpt-fast: plain torch, compiled.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.network.context import rows_of
from dllm_decode.models.network.transformer import Transformer

# Kinds of forwards: with a cache or without; with a mask for each query, for all, or none; of one
# row or several; of one wanted column or several. Each is compiled once, for all sizes.
_MOST_KINDS = 64


def compiled_forward(transformer: Transformer) -> Callable[[ForwardInputs], Float[Tensor, "B W V"]]:
    """Returns the forward of one group of rows, head included, through `torch.compile`.

    A kind of forward is compiled when it first occurs, which takes from seconds to a minute; other
    sizes of the same kind are served by the same code. Results are those of the eager forward up
    to rounding; half precision is rounded where eager code rounds it.

    Raises:
        ValueError: If the network is spread over devices, or its weights are quantised.
    """
    _require_compilable(transformer)
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_KINDS)
    run = torch.compile(
        _logits, fullgraph=True, dynamic=True, options={"emulate_precision_casts": True}
    )

    def forward(inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        frequencies = transformer.config.rope.frequencies(inputs.positions.device)
        return run(transformer, plain_inputs(inputs), frequencies)

    return forward


def _require_compilable(transformer: Transformer) -> None:
    """Raises ValueError if a network is spread, quantised, or has experts in another dtype.

    The product of many experts at once can be compiled in bfloat16 only.
    """
    dtype = transformer.embedding.weight.dtype
    if transformer.config.moe is not None and dtype != torch.bfloat16:
        raise ValueError(
            f"A mixture of experts that is compiled must be in bfloat16, got {dtype}. Load it with "
            "dtype='bfloat16', or with compile=False."
        )
    if transformer.route is not None or transformer.quantized is not None:
        raise ValueError(
            "A model that is compiled must be on one device, with weights that are not quantised, "
            f"got quantize={transformer.quantized!r} and the devices "
            f"{sorted({str(device) for device in (transformer.route or {}).values()})}. Load it "
            "with compile=False."
        )


def _logits(
    transformer: Transformer, inputs: ForwardInputs, frequencies: Float[Tensor, " F"]
) -> Float[Tensor, "B W V"]:
    return transformer.head(transformer.forward_groups([inputs], frequencies))


def plain_inputs(inputs: ForwardInputs) -> ForwardInputs:
    """Returns inputs with slots as a tensor, and a cache of their rows alone instead of a slice.

    Otherwise the numbers of the slices would be compiled into the code.
    """
    cache, slots, rows = inputs.kv_cache, inputs.slots, inputs.rows
    if cache is None:
        return inputs
    if isinstance(slots, slice):
        columns = torch.arange(*slots.indices(cache.num_slots), device=inputs.tokens.device)
        slots = columns.expand_as(inputs.tokens).contiguous()
    if isinstance(rows, slice):
        cache, rows = cache.of_rows(rows), None
    elif rows is not None:
        rows = rows_of(inputs)
    return replace(inputs, kv_cache=cache, slots=slots, rows=rows)

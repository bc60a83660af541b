"""The forward of a network under `torch.compile`: one graph without breaks, for all shapes.

Source: the way of gpt-fast, https://github.com/pytorch-labs/gpt-fast: plain torch, compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.network.transformer import Transformer

# Kinds of forwards: with a cache or without, with a mask for each query, for all, or none, of one
# row or several, for one wanted column or several. Each is compiled once, for all sizes.
_MOST_KINDS = 64


@dataclass
class CompiledForward:
    """Runs forwards of one network through `torch.compile`.

    A kind of forward is compiled when it first occurs, which takes from seconds to a minute; other
    sizes of the same kind are served by the same code. Results are those of the eager forward up
    to rounding.
    """

    _run: Callable[..., Tensor] = field(init=False)

    def __post_init__(self) -> None:
        # Half precision is rounded where eager code rounds it, so that tokens are the same.
        self._run = torch.compile(
            _logits, fullgraph=True, dynamic=True, options={"emulate_precision_casts": True}
        )

    def __call__(self, transformer: Transformer, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Returns the logits of one group of rows."""
        frequencies = transformer.config.rope.frequencies(inputs.positions.device)
        with torch._dynamo.config.patch(recompile_limit=_MOST_KINDS):
            return self._run(transformer, _plain(inputs), frequencies)

    def __deepcopy__(self, memo: dict[int, object]) -> "CompiledForward":
        return CompiledForward()


def _logits(
    transformer: Transformer, inputs: ForwardInputs, frequencies: Float[Tensor, " F"]
) -> Float[Tensor, "B W V"]:
    return transformer.head(transformer.forward_groups([inputs], frequencies))


def _plain(inputs: ForwardInputs) -> ForwardInputs:
    """Returns inputs with tensors for slots, and rows that are all rows of the cache if they can.

    Numbers in slices would be compiled into the code.
    """
    cache, slots, rows = inputs.kv_cache, inputs.slots, inputs.rows
    if cache is None:
        return inputs
    if isinstance(slots, slice):
        columns = torch.arange(*slots.indices(cache.num_slots), device=inputs.tokens.device)
        slots = columns.expand_as(inputs.tokens).contiguous()
    if isinstance(rows, slice):
        cache, rows = cache.of_rows(rows), None
    return replace(inputs, kv_cache=cache, slots=slots, rows=rows)

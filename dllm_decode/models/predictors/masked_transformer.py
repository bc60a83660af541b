"""The mask predictor that a loaded checkpoint becomes: a transformer and what its config says."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dllm_decode.core.model import ForwardInputs, KVCache, MaskPredictor, zeroed_cache
from dllm_decode.models.compiled import compiled_forward
from dllm_decode.models.families.base import Family
from dllm_decode.models.network.context import split_columns
from dllm_decode.models.network.transformer import Transformer

if TYPE_CHECKING:
    from dllm_decode.models.graphs import ForwardGraphs


class MaskedTransformer(nn.Module):
    """A `MaskPredictor` made of a `Transformer` and the facts of its checkpoint.

    Attributes:
        transformer: The network; train through its `forward` and `head`.
        name: See `MaskPredictor`, also for attributes that are not listed here.
        is_causal_too: Under a causal mask the logits at a column predict the next token, as in the
            autoregressive model that it was made of; see `as_causal_target`.
        fingerprint: See `Fingerprinted`; of the files that `load_model` read, else the name.
        files: Files that the model was loaded from; () if it was not loaded.
        family: Family of the checkpoint; `None` if the model was not loaded.
    """

    def __init__(
        self,
        transformer: Transformer,
        *,
        name: str,
        mask_id: int,
        eos_ids: tuple[int, ...],
        banned_ids: tuple[int, ...] = (),
        logit_shift: int = 0,
        causal_block_length: int = 0,
        max_length: int | None = None,
        is_causal_too: bool = False,
    ) -> None:
        super().__init__()
        vocab_size = transformer.config.vocab_size
        if not 0 <= mask_id < vocab_size:
            raise ValueError(f"mask_id must be in [0, {vocab_size}), got {mask_id}.")
        if not eos_ids or any(not 0 <= token < vocab_size for token in eos_ids):
            raise ValueError(
                f"eos_ids must be one or more ids in [0, {vocab_size}), got {eos_ids}."
            )
        self.transformer = transformer
        self.name = name
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.banned_ids = banned_ids
        self.logit_shift = logit_shift
        self.causal_block_length = causal_block_length
        self.max_length = max_length
        self.is_causal_too = is_causal_too
        self.fingerprint = name
        self.files: tuple[Path, ...] = ()
        self.family: Family | None = None
        self._compiled: Callable[[ForwardInputs], Tensor] | None = None
        self._graphs: ForwardGraphs | None = None

    @property
    def device(self) -> torch.device:
        """Where tensors are expected, and logits returned."""
        return self.transformer.device

    @property
    def compiled(self) -> bool:
        """True: a forward of one group of rows runs through `torch.compile`, on any device.

        May be set at any time; ValueError for a model that is spread over devices or quantised.
        Forwards of several groups, which rows at different places of their blocks need, are eager,
        because they have too many combinations of sizes.
        """
        return self._compiled is not None

    @compiled.setter
    def compiled(self, is_compiled: bool) -> None:
        if is_compiled != self.compiled:
            require_one_way(compiled=is_compiled, graphs=self.graphs)
            self._compiled = compiled_forward(self.transformer) if is_compiled else None

    @property
    def graphs(self) -> bool:
        """True: forwards of few columns are recorded as graphs and replayed, see `ForwardGraphs`.

        May be set at any time; ValueError for a model that is compiled, spread over devices, or
        quantised but by "fp8". On a CPU this is slower, and serves tests.
        """
        return self._graphs is not None

    @graphs.setter
    def graphs(self, has_graphs: bool) -> None:
        if has_graphs == self.graphs:
            return
        require_one_way(compiled=self.compiled, graphs=has_graphs)
        if has_graphs:
            # The modules of graphs import the tracer of torch, which takes a second.
            from dllm_decode.models.graphs import ForwardGraphs

            self._graphs = ForwardGraphs(self.transformer, self._allocate_cache)
        else:
            self._graphs = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "MaskedTransformer":
        # Compiled code and graphs read the weights of the model that they were made for.
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        state = self.__dict__ | {"_compiled": None, "_graphs": None}
        twin.__dict__.update({name: deepcopy(part, memo) for name, part in state.items()})
        twin.compiled, twin.graphs = self.compiled, self.graphs
        return twin

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters, the logits and the KV cache."""
        return self.transformer.embedding.weight.dtype

    @property
    def routing_block_length(self) -> int:
        """See `RoutesByBlock`."""
        return self.transformer.config.routing_block_length

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Runs one forward without gradients; only the wanted columns go through the head."""
        if self._compiled is None:
            return self._forward(inputs)
        # Compiled code reads the plain weights; Inductor orders them itself.
        self.transformer.unpack()
        with torch.inference_mode(), attention_on(self.device):
            logits = self._compiled(inputs)
        # The caller may change the logits in place, wherever it runs.
        return logits if torch.is_inference_mode_enabled() else logits.clone()

    def predict_groups(self, groups: Sequence[ForwardInputs]) -> list[Float[Tensor, "_ _ V"]]:
        """Runs one forward of several groups without gradients, see `GroupPredictor`.

        A single group is run by `predict`, which may be compiled.
        """
        if len(groups) == 1:
            return [self.predict(groups[0])]
        return split_columns(self._forward(*groups), [group.wanted.shape for group in groups])

    def _forward(self, *groups: ForwardInputs) -> Float[Tensor, "_ _ V"]:
        run: Callable[[Sequence[ForwardInputs]], Tensor] = self.transformer.forward_groups
        if self._graphs is not None:
            run = self._graphs.forward_groups
        elif not self.compiled:
            self.transformer.pack()
        with torch.inference_mode(), attention_on(self.device):
            hidden = run(groups)
        # Not in inference mode: the caller may change the logits in place, wherever it runs.
        with torch.no_grad():
            return self.transformer.head(hidden).to(self.device)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Returns a zeroed cache in the model's dtype, each layer's part on its device."""
        new = self._allocate_cache if self._graphs is None else self._graphs.new_kv_cache
        return new(num_rows, num_slots)

    def _allocate_cache(self, num_rows: int, num_slots: int) -> KVCache:
        shape, route = self.transformer.config, self.transformer.route
        names = [f"layers.{n}" for n in range(shape.num_layers)]
        devices = [self.device if route is None else route[name] for name in names]
        size = (num_rows, shape.num_kv_heads, num_slots, shape.head_dim)
        runs = ((device, len(list(run))) for device, run in groupby(devices))
        return KVCache.of([zeroed_cache((n, *size), self.dtype, device) for device, n in runs])


def require_one_way(*, compiled: bool, graphs: bool) -> None:
    """Raises ValueError if forwards would be both compiled and recorded."""
    if compiled and graphs:
        raise ValueError(
            "A model must be compiled or have graphs, but not both. Pass compile=False or "
            "graphs=False."
        )


def require_own_network(model: MaskPredictor) -> MaskedTransformer:
    """Returns a model; ValueError if it is no network of this package."""
    if not isinstance(model, MaskedTransformer):
        raise ValueError(
            f"The model must be a network of this package, got {model.name}, which transformers "
            "computes. Use a model such as LLaDA."
        )
    return model


def attention_on(device: torch.device) -> AbstractContextManager[None]:
    """Selects attention kernels on CUDA, without cuDNN's, which are planned for each new shape."""
    if device.type != "cuda":
        return nullcontext()
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    chosen: AbstractContextManager[None] = sdpa_kernel(backends)
    return chosen

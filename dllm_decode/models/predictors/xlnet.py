"""XLNet, an any-subset autoregressive model: the network of transformers as a mask predictor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dllm_decode.core.model import ForwardInputs, KVCache

if TYPE_CHECKING:
    import transformers


class XLNet:
    """An `XLNetLMHeadModel` of transformers, which predicts any tokens from any others.

    Each wanted column is predicted from the columns that its row of `attend` names, not from itself
    and not from [MASK], so that one forward has all conditionals of a whole order of positions.
    Without `attend`, as for a sampler, all columns that hold a token are read.

    Positions are relative, and a forward computes every column, so that there is no cache.

    Source: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
    Understanding", https://arxiv.org/abs/1906.08237; transformers 5.23, `models/xlnet`.

    Attributes:
        name: See `MaskPredictor`, also for attributes that are not listed here.
        max_length: Length of texts in the training by Guo and Ermon 2025.
        fingerprint: See `Fingerprinted`.
        files: The files that the model was read from.
        network: The model of transformers.
    """

    logit_shift = 0
    causal_block_length = 0
    reads_any_subset = True
    banned_ids: tuple[int, ...] = ()
    max_length: int | None = 512

    def __init__(
        self,
        network: "transformers.XLNetLMHeadModel",
        *,
        name: str,
        mask_id: int,
        eos_ids: tuple[int, ...],
    ) -> None:
        """Wraps a model on its device; it is set to evaluation mode."""
        self.name = self.fingerprint = name
        self.vocab_size = int(network.config.vocab_size)
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.files: tuple[Path, ...] = ()
        self.network: Any = network.eval().requires_grad_(False)
        transformer = self.network.transformer
        encoding = transformer.relative_positional_encoding
        # The library leaves the encoding in float32, and multiplies it with weights of any dtype.
        transformer.relative_positional_encoding = lambda *args, **options: encoding(
            *args, **options
        ).to(self.dtype)

    def __repr__(self) -> str:
        return f"XLNet({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        device: torch.device = self.network.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Runs one forward without gradients.

        Raises:
            ValueError: If the positions are not 0, 1, 2 and so on.
        """
        tokens, wanted = inputs.tokens, inputs.wanted
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        if not (inputs.positions == columns).all():
            raise ValueError(
                f"{self.name} must be asked with the columns 0, 1, 2 and so on, because the "
                "positions of XLNet are relative, got others. Use SelfVerify(evaluate='batch'), or "
                "a sampler that does not look at copies."
            )
        seen = (tokens != self.mask_id)[:, None]
        seen = seen if inputs.attend is None else seen & inputs.attend
        # A column must not see itself; its content state sees itself in the library all the same.
        hidden = ~seen | (columns == columns[:, None])
        # A column that is wanted twice is predicted once, because the library adds up its queries.
        first = (wanted[:, :, None] == wanted[:, None]).long().argmax(-1)
        is_first = first == torch.arange(wanted.shape[1], device=wanted.device)
        targets = one_hot(wanted, len(columns)) * is_first[..., None]
        with torch.no_grad():
            states = self.network.transformer(
                tokens,
                perm_mask=hidden.to(self.dtype),
                target_mapping=targets.to(self.dtype),
                use_mems=False,
            ).last_hidden_state
            index = first[..., None].expand(-1, -1, states.shape[-1])
            logits: Tensor = self.network.lm_loss(states.gather(1, index))
        return logits

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Raises ValueError, because the network has no keys and values that could be kept."""
        raise ValueError(
            f"cache must be NoCache() with {self.name}, an XLNet, which computes every column."
        )

"""XLNet, an any-subset autoregressive model: the network of transformers as a mask predictor.

It is loaded with the class of transformers: safetensors only, no remote code.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.needs import generation_of
from dllm_decode.models.loading.weights import (
    fingerprint_of_network,
    load_by_transformers,
    model_files,
)

if TYPE_CHECKING:
    import transformers

_MASK_ID = 6


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


def load_xlnet(
    folder: Path,
    tokenizer: Any,
    name: str,
    device: Any,
    dtype: torch.dtype | None,
    *,
    mask_id: int | None,
) -> XLNet:
    """Loads an XLNet; see `load_model`.

    The tokenizer, if there is one, is changed to add no special tokens, because the model fills in
    text between texts.

    Raises:
        ValueError: If the model is of another kind, or a tensor is missing.
    """
    from transformers import XLNetLMHeadModel

    path = folder / "config.json"
    config = ConfigReader(read_json(path), file=repr(str(path)))
    for key, allowed in (("attn_type", "bi"), ("bi_data", False)):
        if not config.is_one_of(key, (allowed,)):
            raise config.error(
                key, f"{allowed!r}, so that any subset can be read", config.value(key)
            )
    files = model_files(folder)
    network = load_by_transformers(XLNetLMHeadModel, folder, dtype="auto")
    fingerprint = fingerprint_of_network(network)
    # The library leaves some weights in float32, whatever dtype is asked for.
    network.to(device, dtype or network.transformer.word_embedding.weight.dtype)
    if mask_id is None:
        mask_id = _MASK_ID if tokenizer is None else tokenizer.mask_token_id
    ends = (generation_of(folder) or config).integers(
        "eos_token_id", most=int(network.config.vocab_size) - 1
    )
    model = XLNet(network, name=name, mask_id=mask_id, eos_ids=tuple(ends))
    model.files, model.fingerprint = files, fingerprint
    if tokenizer is not None:
        tokenizer.backend_tokenizer.post_processor = None
    return model

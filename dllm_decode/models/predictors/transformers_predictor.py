"""Any masked language model of transformers as a mask predictor, without a key-value cache."""

import inspect
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.model import ForwardInputs, KVCache

if TYPE_CHECKING:
    import transformers


class TransformersMaskPredictor:
    """A masked language model of transformers, such as a BERT or a ModernBERT.

    Every forward computes every column, so only `NoCache()` works with this class. Models that
    `load_model` knows are faster with it; this class is for all other models.

    The attributes are those of `MaskPredictor`.
    """

    causal_block_length = 0

    def __init__(
        self,
        model: "transformers.PreTrainedModel",
        *,
        mask_id: int,
        eos_ids: tuple[int, ...],
        banned_ids: tuple[int, ...] = (),
        logit_shift: int = 0,
        name: str | None = None,
    ) -> None:
        """Wraps a model; it is set to evaluation mode.

        Args:
            model: Its forward takes `input_ids` and a two-dimensional `attention_mask`, attends in
                both directions, and returns `logits` of every column.
            mask_id: The [MASK] token, `tokenizer.mask_token_id`.
            eos_ids: Tokens that end an answer, such as `(tokenizer.sep_token_id,)`.
            banned_ids: Ids besides `mask_id` that must never be emitted.
            logit_shift: 0 when the logits at a column predict that column, 1 when the next.
            name: Shown in records and messages; `None`: the name in the config.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        self.vocab_size = int(model.config.vocab_size)
        ids_by_option = {"mask_id": (mask_id,), "eos_ids": eos_ids, "banned_ids": banned_ids}
        for option, ids in ids_by_option.items():
            if any(not 0 <= token < self.vocab_size for token in ids):
                raise ValueError(f"{option} must be in [0, {self.vocab_size}), got {ids}.")
        if not eos_ids:
            raise ValueError("eos_ids must be one or more ids, got none. Pass the separator's.")
        if logit_shift not in (0, 1):
            raise ValueError(f"logit_shift must be 0 or 1, got {logit_shift}.")
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.banned_ids = banned_ids
        self.logit_shift = logit_shift
        self.name = name or model.config.name_or_path or type(model).__name__
        self.max_length: int | None = model.config.to_dict().get("max_position_embeddings")
        self._model = model.eval()
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def __repr__(self) -> str:
        return f"TransformersMaskPredictor({self.name!r})"

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        device: torch.device = self._model.device
        return device

    def predict(self, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
        """Runs one forward without gradients.

        Raises:
            ValueError: If the queries of a row see different keys, which a two-dimensional mask
                cannot say.
        """
        positions = {"position_ids": inputs.positions} if self._takes_positions else {}
        with torch.no_grad():
            attend = _two_dimensional(inputs).long()
            out = self._model(input_ids=inputs.tokens, attention_mask=attend, **positions)
        index = inputs.wanted[..., None].expand(-1, -1, out.logits.shape[-1])
        logits: Tensor = out.logits.gather(1, index)
        return logits

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """Raises ValueError, because a wrapped model has no keys and values that could be kept."""
        raise ValueError(
            f"A cache needs a model that load_model reads, got {self.name!r}, a wrapped model of "
            "transformers, which computes every column. Use NoCache()."
        )


def _two_dimensional(inputs: ForwardInputs) -> Bool[Tensor, "B Q"] | Int[Tensor, "B Q"]:
    attend = inputs.attend
    if attend is None:
        return torch.ones_like(inputs.tokens)
    if attend.shape[1] > 1 and not (attend == attend[:, :1]).all():
        raise ValueError(
            "A wrapped model of transformers must be asked with one mask for all queries of a row, "
            "got queries that see different keys. Use SelfVerify(evaluate='batch'), or a sampler "
            "that does not look at copies."
        )
    return attend[:, 0]

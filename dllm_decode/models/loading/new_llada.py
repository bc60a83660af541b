"""Makes a new model with random weights."""

import torch

from dllm_decode.models.loading.placement import empty, new_on_meta
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.transformer import Transformer
from dllm_decode.models.predictors.masked_transformer import MaskedTransformer


def new_llada(
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    mlp_hidden_size: int,
    mask_id: int,
    eos_ids: tuple[int, ...],
    num_kv_heads: int | None = None,
    rope_theta: float = 500000.0,
    tied_head: bool = False,
    name: str = "llada",
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> MaskedTransformer:
    """Builds a randomly initialised model that `save_model` can write.

    Weights are normal with standard deviation 0.02, those that write to the residual stream with
    0.02 / sqrt(2 num_layers); norm weights are 1.

    Args:
        vocab_size: See `NetworkConfig`, as all sizes.
        hidden_size: A multiple of twice `num_heads`.
        num_layers: Decoder blocks.
        num_heads: Query heads.
        mlp_hidden_size: Inner width of the SwiGLU.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer; the first fills the rest of it.
        num_kv_heads: `None`: as many as query heads.
        rope_theta: Base of the rotary frequencies.
        tied_head: The head is the embedding.
        name: Name of the model.
        seed: Seed of the weights; they also depend on the kind of device and on the dtype.
        device: Where the weights are made.
        dtype: Dtype in which the weights are made; no other copy is made.

    Raises:
        ValueError: If the sizes do not fit together.
    """
    if hidden_size % (2 * num_heads):
        raise ValueError(
            f"hidden_size is a multiple of twice num_heads, got {hidden_size} and {num_heads}."
        )
    shape = NetworkConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_dim=hidden_size // num_heads,
        mlp_hidden_size=mlp_hidden_size,
        norm_eps=1e-5,
        rope_theta=rope_theta,
        rope_in_float32=True,
        tied_head=tied_head,
    )
    transformer = new_on_meta(shape).to(dtype)
    empty(transformer, device)
    _initialise(transformer, seed)
    return MaskedTransformer(transformer, name=name, mask_id=mask_id, eos_ids=eos_ids)


def _initialise(transformer: Transformer, seed: int) -> None:
    generator = torch.Generator(transformer.embedding.weight.device).manual_seed(seed)
    residual_std = 0.02 / (2 * transformer.config.num_layers) ** 0.5
    for name, part in transformer.parts().items():
        if name.endswith("norm.weight"):
            part.fill_(1.0)
        elif name.endswith(("output.weight", "down.weight")):
            part.normal_(0.0, residual_std, generator=generator)
        else:
            part.normal_(0.0, 0.02, generator=generator)

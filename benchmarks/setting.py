"""The setting of a measurement: one model and one decode, the same for all contenders."""

from dataclasses import asdict, dataclass, replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_decode.models import (
    CausalTarget,
    MaskedTransformer,
    NetworkConfig,
    Transformer,
    new_llada,
)
from dllm_decode.models.network.config import MoEConfig


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model in LLaDA's layout.

    The vocabulary is LLaDA's, because head and softmax are part of the cost.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_hidden_size: int
    vocab_size: int = 126_464


GEOMETRIES = {
    "tiny": Geometry(64, 2, 2, 128, vocab_size=1000),
    "small": Geometry(256, 4, 4, 768, vocab_size=8192),
    "8x512": Geometry(512, 8, 8, 1536),
    "llada-8b": Geometry(4096, 32, 32, 12_288),
}
"""By name: for tests, for checks, for CPUs, and that of LLaDA-8B."""

FAMILIES = ("dense", "shifted", "block-causal", "experts")
"""Kinds of models: LLaDA's; one whose columns predict the next token, as Dream's; one whose blocks
see no later block, as SDAR's; and one with 64 experts, 8 a token, as LLaDA-MoE."""


@dataclass(frozen=True)
class Setting:
    """One model and one decode.

    Attributes:
        geometry: Sizes of the model; llada-8b on an accelerator.
        family: Kind of the model: how it predicts and sees, or what its layers have.
        vocab_size: Entries of the vocabulary; 0: those of the geometry.
        prompt_length: Tokens, in the table and where batches grow.
        gen_length: Tokens of an answer, in the table.
        block_length: Tokens of a block.
        steps_per_block: Forwards a block, in the table; one for each token: one token a step.
        batch_size: Rows, in the table.
        dtype: Of parameters and activations.
        device: Where the model runs; an accelerator if there is one.
        num_threads: Of torch, on the CPU.
    """

    geometry: str = "8x512"
    family: str = "dense"
    vocab_size: int = 0
    prompt_length: int = 256
    gen_length: int = 128
    block_length: int = 32
    steps_per_block: int = 32
    batch_size: int = 1
    dtype: str = "bfloat16"
    device: str = "cpu"
    num_threads: int = 2

    @property
    def sizes(self) -> Geometry:
        """The geometry of that name, with the vocabulary."""
        sizes = GEOMETRIES[self.geometry]
        return replace(sizes, vocab_size=self.vocab_size or sizes.vocab_size)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of that name."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def model(self) -> MaskedTransformer:
        """Builds the model with random weights, peaked so that no step is decided by a tie."""
        sizes, vocab_size = self.sizes, self.sizes.vocab_size
        if self.family == "experts":
            return new_mixture(_mixture_of(sizes), self)
        model = new_llada(
            **asdict(sizes), mask_id=vocab_size - 1, eos_ids=(vocab_size - 2,),
            device=self.device, dtype=self.torch_dtype,
        )  # fmt: skip
        with torch.no_grad():
            model.transformer.lm_head.weight.mul_(10.0)
            for layer in model.transformer.layers:
                layer.attention.output.weight.mul_(8.0)
                layer.mlp.down.weight.mul_(8.0)
        model.logit_shift = int(self.family == "shifted")
        model.causal_block_length = self.block_length if self.family == "block-causal" else 0
        return model.eval().requires_grad_(False)

    def target(self) -> CausalTarget:
        """Builds a random causal model with the same vocabulary, an eighth as deep, half as wide.

        The target accepts almost no draft, so that it shows the cost of a round, not the gain.
        """
        sizes = self.sizes
        config = LlamaConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size // 2,
            intermediate_size=sizes.mlp_hidden_size // 2,
            num_hidden_layers=max(1, sizes.num_layers // 8),
            num_attention_heads=sizes.num_heads,
            max_position_embeddings=16_384,
            bos_token_id=None,
            eos_token_id=sizes.vocab_size - 2,
            dtype=self.torch_dtype,
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            model = LlamaForCausalLM._from_config(config, dtype=self.torch_dtype)
        return CausalTarget(model.eval().requires_grad_(False), name="random")

    def prompts(self) -> list[list[int]]:
        """Returns random prompts, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch_size, self.prompt_length)
        return torch.randint(self.sizes.vocab_size - 2, size, generator=generator).tolist()


def new_mixture(
    config: NetworkConfig, setting: Setting, *, causal_block_length: int = 0
) -> MaskedTransformer:
    """Builds a model with experts and random weights.

    Masks, which are one token, share more experts than words do. Compare with a trained model by
    the share of active experts.
    """
    with torch.device("meta"):
        transformer = Transformer(config)
    transformer.to(setting.torch_dtype).to_empty(device=setting.device)
    generator = torch.Generator(setting.device).manual_seed(0)
    with torch.no_grad():
        for name, part in transformer.named_parameters():
            if part.ndim > 1:
                part.normal_(std=part.shape[-1] ** -0.5, generator=generator)
            else:
                part.fill_(0.0 if name.endswith("selection_bias") else 1.0)
    model = MaskedTransformer(
        transformer, name="random experts", mask_id=config.vocab_size - 1,
        eos_ids=(config.vocab_size - 2,), causal_block_length=causal_block_length,
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def _mixture_of(sizes: Geometry) -> NetworkConfig:
    """Returns a network in which a token's experts are together as wide as the MLP."""
    num_active = 8
    return NetworkConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size, num_layers=sizes.num_layers,
        num_heads=sizes.num_heads, num_kv_heads=sizes.num_heads,
        head_dim=sizes.hidden_size // sizes.num_heads, mlp_hidden_size=sizes.mlp_hidden_size,
        norm_eps=1e-5, rope_theta=50_000.0, qk_norm=True,
        moe=MoEConfig(64, num_active, sizes.mlp_hidden_size // num_active, normalised=False),
    )  # fmt: skip

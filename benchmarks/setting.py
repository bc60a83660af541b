"""The setting of a measurement: one model and one decode, the same for all contenders."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

import dllm_decode
from dllm_decode import CachePolicy, DecodeOutput, Verifier, decode
from dllm_decode.models import MaskedTransformer, new_llada
from samplers import FixedSchedule
from samplers.expression import parse_expression


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
    "8x4096": Geometry(4096, 8, 32, 12_288),
    "llada-8b": Geometry(4096, 32, 32, 12_288),
}
"""By name: for tests, for checks, for CPUs, a quarter of LLaDA-8B's layers, and all of them."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEFAULT_GEOMETRIES = {"cpu": "8x512", "cuda": "llada-8b"}


@dataclass(frozen=True)
class Setting:
    """One model and one decode.

    Attributes:
        geometry: Sizes of the model; llada-8b on an accelerator.
        prompt_length: Tokens, in the table and where batches grow.
        gen_length: Tokens of an answer, in the table.
        block_length: Tokens of a block.
        steps_per_block: Forwards a block, in the table; one for each token: one token a step.
        batch_size: Rows, in the table.
        dtype: Of parameters and activations.
        device: Where the model runs; an accelerator if there is one.
        num_threads: Of torch, on the CPU.
        compiled: Whether forwards run through torch.compile.
    """

    geometry: str = "8x512"
    prompt_length: int = 256
    gen_length: int = 128
    block_length: int = 32
    steps_per_block: int = 32
    batch_size: int = 1
    dtype: str = "bfloat16"
    device: str = "cpu"
    num_threads: int = 2
    compiled: bool = False

    @property
    def sizes(self) -> Geometry:
        """The geometry of that name."""
        return GEOMETRIES[self.geometry]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of that name."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def model(self) -> MaskedTransformer:
        """Builds the model with random weights.

        Logits are peaked, so that no step is decided by a tie, and so is attention, so that columns
        differ: nearly all tokens of an answer are distinct.
        """
        sizes, vocab_size = self.sizes, self.sizes.vocab_size
        model = new_llada(
            **asdict(sizes), mask_id=vocab_size - 1, eos_ids=(vocab_size - 2,),
            device=self.device, dtype=self.torch_dtype,
        )  # fmt: skip
        with torch.no_grad():
            model.transformer.lm_head.weight.mul_(10.0)
            for layer in model.transformer.layers:
                queries_and_keys = 2 * sizes.hidden_size
                layer.attention.qkv.weight[:queries_and_keys].mul_(4.0)
                layer.attention.output.weight.mul_(8.0)
                layer.mlp.down.weight.mul_(8.0)
        model.compiled = self.compiled
        return model.eval().requires_grad_(False)

    def prompts(self) -> list[list[int]]:
        """Returns random prompts, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch_size, self.prompt_length)
        return torch.randint(self.sizes.vocab_size - 2, size, generator=generator).tolist()


def decode_setting(model: MaskedTransformer, setting: Setting, **plugins: Any) -> DecodeOutput:
    """Decodes the prompts of a setting, to their full length."""
    return decode(
        model, setting.prompts(), FixedSchedule(setting.steps_per_block),
        gen_length=setting.gen_length, block_length=setting.block_length, stop_at_eos=False,
        **plugins,
    )  # fmt: skip


def parse_pair(text: str) -> tuple[CachePolicy, Verifier]:
    """Reads "DualCache(), SelfVerify(4)"."""
    named = {name: getattr(dllm_decode, name) for name in dllm_decode.__all__}
    named["pair"] = lambda cache, verifier: (cache, verifier)
    cache, verifier = parse_expression(f"pair({text})", named)
    return cache, verifier

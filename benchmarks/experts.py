"""A block step of a mixture of experts, compared with the least time that it can take.

Times the block step of a random mixture of LLaDA2.0-mini's proportions with `DualCache`. The least
time is that of reading the weights once, without the experts that have no token.
"""

from dataclasses import replace
from statistics import median
from typing import Any

import torch

from benchmarks.floor import Machine
from benchmarks.frame import Row
from benchmarks.setting import Setting, decode_setting
from benchmarks.watch import Watch
from dllm_decode import DualCache
from dllm_decode.models import MaskedTransformer, NetworkConfig, Transformer
from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.moe import Experts

BLOCK_LENGTH = 32


def config_of(share: int = 4, num_layers: int = 6, num_experts: int = 256) -> NetworkConfig:
    """Returns LLaDA2.0-mini's network, with all widths and the vocabulary divided by `share`."""
    return NetworkConfig(
        vocab_size=157_184 // share, hidden_size=2048 // share, num_layers=num_layers,
        num_heads=16, num_kv_heads=4, head_dim=128 // share, mlp_hidden_size=5120 // share,
        norm_eps=1e-6, rope_theta=600_000.0, rotary_dim=64 // share, qk_norm=True,
        dense_layers=frozenset({0}),
        moe=MoEConfig(
            num_experts=num_experts, num_active=8, hidden_size=512 // share,
            shared_hidden_size=512 // share, score="sigmoid", has_selection_bias=True,
            num_groups=8, num_open_groups=4, scale=2.5, routes_in_float32=True,
            mixes_in_float32=True,
        ),
    )  # fmt: skip


def new_mixture(config: NetworkConfig, setting: Setting) -> MaskedTransformer:
    """Builds a block-causal model with experts and random weights.

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
        eos_ids=(config.vocab_size - 2,), causal_block_length=BLOCK_LENGTH,
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def stacks_of(model: MaskedTransformer) -> list[Experts]:
    """Returns the experts of each layer that has some."""
    return [part for part in model.transformer.modules() if isinstance(part, Experts)]


def bytes_read(model: MaskedTransformer) -> tuple[int, int]:
    """Returns the bytes of weights that every forward reads, and those of one expert.

    The embedding counts as nothing: a forward reads only the rows of its tokens.
    """
    stacks = stacks_of(model)
    stack_bytes = sum(parameter.nbytes for stack in stacks for parameter in stack.parameters())
    total_bytes = sum(parameter.nbytes for parameter in model.transformer.parameters())
    num_experts = len(stacks) * stacks[0].config.num_experts
    embedding = model.transformer.embedding.weight.nbytes
    return total_bytes - stack_bytes - embedding, stack_bytes // num_experts


def count_active(model: MaskedTransformer) -> list[int]:
    """Returns a list to which each layer's forward adds its number of experts with a token."""
    active: list[int] = []

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        active.append(len(arguments[1].experts.unique()))

    for stack in stacks_of(model):
        stack.register_forward_pre_hook(note)
    return active


def measure(config: NetworkConfig, setting: Setting, machine: Machine) -> Row:
    """Decodes twice, to count experts and to take times; returns medians over the block steps."""
    counted, model = (new_mixture(config, setting) for _ in range(2))
    active, watch = count_active(counted), Watch(model.device)
    decode_setting(counted, setting, cache=DualCache())
    decode_setting(model, replace(setting, gen_length=BLOCK_LENGTH), cache=DualCache())
    watch.follow(model)
    decode_setting(model, setting, cache=DualCache())
    num_stacks = len(stacks_of(model))
    assert len(active) == num_stacks * len(watch.forwards), "the two decodes differ"
    # Forwards over a block; other forwards fill the cache.
    widths = [{group.computed for group in groups} for groups in watch.forwards]
    steps = [step for step, forward_widths in enumerate(widths) if forward_widths == {BLOCK_LENGTH}]
    active_by_step = [sum(active[num_stacks * step :][:num_stacks]) for step in steps]
    always_bytes, expert_bytes = bytes_read(model)
    num_experts = num_stacks * stacks_of(model)[0].config.num_experts
    seconds = watch.seconds()
    step_s, num_active = median(seconds[step] for step in steps), median(active_by_step)
    floor_s = (always_bytes + num_active * expert_bytes) / machine.bytes_per_s
    return {
        "rows": setting.batch_size,
        "ms": 1000 * step_s,
        "times floor": step_s / floor_s,
        "active experts": num_active / num_experts,
    }


def expert_rows(config: NetworkConfig, setting: Setting, machine: Machine) -> list[Row]:
    """Returns a row for each number of rows, with the device and dtype of a setting."""
    torch.set_num_threads(setting.num_threads)
    # Only the prompts use the geometry: ids of a vocabulary that every mixture contains.
    setting = replace(
        setting, geometry="small", gen_length=2 * BLOCK_LENGTH, block_length=BLOCK_LENGTH
    )
    return [measure(config, replace(setting, batch_size=size), machine) for size in (1, 4)]

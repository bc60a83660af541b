"""A block step of a mixture of experts and its own floor: python -m benchmarks.experts.

Times the block step of a random mixture of LLaDA2.0-mini's proportions with `DualCache`, and
compares it with the least that it can take: weights are read once, and experts without a token not
at all.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.contenders import decode_setting
from benchmarks.floor import Machine, measure_machine
from benchmarks.frame import Row, read_options, report
from benchmarks.setting import Setting, new_mixture
from benchmarks.watch import Watch
from dllm_decode import DualCache
from dllm_decode.launch import run_main
from dllm_decode.models import MaskedTransformer, NetworkConfig
from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.moe import Experts

BLOCK_LENGTH = 32
OPTIONS = {
    "share": (4, "divides all widths, a power of two up to 16; 1: LLaDA2.0-mini's own"),
    "num_layers": (6, "decoder blocks, the first without experts; LLaDA2.0-mini has 20"),
    "num_experts": (256, "routed experts of a layer"),
    "batch_sizes": ([1, 4], "rows"),
    "prompt_length": (256, "tokens"),
    "steps": (16, "forwards a block"),
    "dtype": ("bfloat16", "of the weights"),
    "device": ("cpu", "cpu, cuda, ..."),
    "threads": (2, "of torch, on the CPU"),
}


def config_of(share: int, num_layers: int, num_experts: int) -> NetworkConfig:
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


def stacks_of(model: MaskedTransformer) -> list[Experts]:
    """Returns the experts of each layer that has some."""
    return [part for part in model.transformer.modules() if isinstance(part, Experts)]


def bytes_read(model: MaskedTransformer) -> tuple[int, int]:
    """Returns the bytes of weights that every forward reads, and those of one expert.

    The embedding counts as nothing: a forward reads only the rows of its tokens.
    """
    stacks = stacks_of(model)
    of_stacks = sum(parameter.nbytes for stack in stacks for parameter in stack.parameters())
    of_all = sum(parameter.nbytes for parameter in model.transformer.parameters())
    num_experts = len(stacks) * stacks[0].config.num_experts
    embedding = model.transformer.embedding.weight.nbytes
    return of_all - of_stacks - embedding, of_stacks // num_experts


def count_active(model: MaskedTransformer) -> list[int]:
    """Counts the experts that have a token, by layer and forward, in the list that is returned."""
    active: list[int] = []

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        active.append(len(arguments[1].experts.unique()))

    for stack in stacks_of(model):
        stack.register_forward_pre_hook(note)
    return active


def measure(config: NetworkConfig, setting: Setting, machine: Machine) -> Row:
    """Decodes the same twice: counting experts, then taking time; medians of the block steps."""
    counted, model = (
        new_mixture(config, setting, causal_block_length=BLOCK_LENGTH) for _ in range(2)
    )
    active, watch = count_active(counted), Watch(model.device)
    decode_setting(counted, setting, cache=DualCache())
    decode_setting(model, replace(setting, gen_length=BLOCK_LENGTH), cache=DualCache())
    watch.follow(model)
    decode_setting(model, setting, cache=DualCache())
    num_stacks = len(stacks_of(model))
    assert len(active) == num_stacks * len(watch.forwards), "the two decodes differ"
    # Forwards over a block; others fill the cache.
    widths = [{group.computed for group in groups} for groups in watch.forwards]
    steps = [step for step, found in enumerate(widths) if found == {BLOCK_LENGTH}]
    by_step = [sum(active[num_stacks * step :][:num_stacks]) for step in steps]
    always, of_an_expert = bytes_read(model)
    num_experts = num_stacks * stacks_of(model)[0].config.num_experts
    seconds = watch.seconds()
    step_s, num_active = median(seconds[step] for step in steps), median(by_step)
    floor_s, full_floor_s = (
        (always + count * of_an_expert) / machine.bytes_per_s for count in (num_active, num_experts)
    )
    return {
        "rows": setting.batch_size,
        "ms": 1000 * step_s,
        "times floor": step_s / floor_s,
        "times floor of all experts": step_s / full_floor_s,
        "active experts": num_active / num_experts,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options("benchmarks.experts", __doc__ or "", OPTIONS, words)
    config = config_of(options.share, options.num_layers, options.num_experts)
    # The geometry gives prompts their vocabulary alone, which every share has.
    setting = Setting(
        "small", prompt_length=options.prompt_length,
        gen_length=2 * BLOCK_LENGTH, block_length=BLOCK_LENGTH, steps_per_block=options.steps,
        dtype=options.dtype, device=options.device, num_threads=options.threads,
    )  # fmt: skip
    machine = measure_machine(setting)
    rows = [
        measure(config, replace(setting, batch_size=size), machine) for size in options.batch_sizes
    ]
    title = (
        f"Block step of {BLOCK_LENGTH}, {config.num_layers} layers x {config.hidden_size}, "
        f"{options.num_experts} experts, 8 a token; {machine.bytes_per_s / 1e9:.1f} GB/s"
    )
    report(title, rows, options)


if __name__ == "__main__":
    run_main(main)

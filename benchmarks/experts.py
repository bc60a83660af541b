"""A block step of a mixture of experts and its own floor: python -m benchmarks.experts."""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.floor import Machine, measure_machine
from benchmarks.measure import Watch
from benchmarks.setting import Setting
from dllm_decode import DualCache, decode
from dllm_decode.models import MaskedTransformer, NetworkConfig, Transformer
from dllm_decode.models.base import ForwardInputs
from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.moe import Experts, MoE, Routing
from samplers import FixedSchedule

BLOCK_LENGTH = 32


@dataclass(frozen=True)
class Proportions:
    """Sizes of LLaDA2.0-mini, all widths divided by the same number.

    Attributes:
        share: Divides widths and the vocabulary; a power of two up to 16.
        num_layers: Decoder blocks, the first of them without experts.
        num_experts: Routed experts of a layer.
    """

    share: int = 4
    num_layers: int = 6
    num_experts: int = 256

    def config(self) -> NetworkConfig:
        """Returns the network: 16 heads of 128 that share 4 of keys, in the original."""
        expert_size = 512 // self.share
        return NetworkConfig(
            vocab_size=157_184 // self.share,
            hidden_size=2048 // self.share,
            num_layers=self.num_layers,
            num_heads=16,
            num_kv_heads=4,
            head_dim=128 // self.share,
            mlp_hidden_size=5120 // self.share,
            norm_eps=1e-6,
            rope_theta=600_000.0,
            rotary_dim=64 // self.share,
            qk_norm=True,
            moe=MoEConfig(
                num_experts=self.num_experts,
                num_active=8,
                hidden_size=expert_size,
                shared_hidden_size=expert_size,
                score="sigmoid",
                has_selection_bias=True,
                num_groups=8,
                num_open_groups=4,
                scale=2.5,
                routes_in_float32=True,
                mixes_in_float32=True,
            ),
            dense_layers=frozenset({0}),
        )

    def model(self, setting: Setting) -> MaskedTransformer:
        """Builds the model with random weights, block-causal.

        Masks, which are one token, share more experts than words do. Compare with a trained model
        by the share of active experts.
        """
        config = self.config()
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
            transformer,
            name="random experts",
            mask_id=config.vocab_size - 1,
            eos_ids=(config.vocab_size - 2,),
            causal_block_length=BLOCK_LENGTH,
        )
        return model.eval().requires_grad_(False)


@dataclass
class Needs:
    """The least that each forward of a model must read and compute.

    Attributes:
        weight_bytes: Bytes of weights that the forward reads, without experts without a token.
        flops: Operations of its matrix products; on a CPU without those of attention.
        num_active: Experts with a token, summed over layers.
    """

    weight_bytes: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    num_active: list[int] = field(default_factory=list)

    def follow(self, model: MaskedTransformer) -> None:
        """Counts from here on; not while time is taken."""
        always, of_an_expert = bytes_read(model)
        seen: list[int] = []

        def note(module: nn.Module, arguments: tuple[Tensor, Routing, Any]) -> None:
            seen.append(len(arguments[1].experts.unique()))

        for part in model.transformer.modules():
            if isinstance(part, Experts):
                part.register_forward_pre_hook(note)
        predict = model.predict

        def counted(inputs: ForwardInputs) -> Tensor:
            seen.clear()
            with FlopCounterMode(display=False) as counter:
                logits = predict(inputs)
            self.num_active.append(sum(seen))
            self.weight_bytes.append(always + sum(seen) * of_an_expert)
            self.flops.append(counter.get_total_flops())
            return logits

        model.predict = counted  # type: ignore[method-assign]  # this object alone is watched


def bytes_read(model: MaskedTransformer) -> tuple[int, int]:
    """Returns the bytes of weights that every forward reads, and those of one expert.

    The embedding counts as nothing: a forward reads only the rows of its tokens.
    """
    stacks = [part for part in model.transformer.modules() if isinstance(part, Experts)]
    of_stacks = sum(parameter.nbytes for stack in stacks for parameter in stack.parameters())
    of_all = sum(parameter.nbytes for parameter in model.transformer.parameters())
    num_experts = len(stacks) * stacks[0].config.num_experts
    embedding = model.transformer.embedding.weight.nbytes
    return of_all - of_stacks - embedding, of_stacks // num_experts


@dataclass(frozen=True)
class Step:
    """A block step, one row of the table.

    Attributes:
        rows: B.
        step_s: Median seconds inside the model, of the steps within a block.
        floor_s: The greater of reading what is active and of the products, the same median step.
        full_floor_s: The floor if all experts had to be read.
        active: Share of the experts that have a token.
    """

    rows: int
    step_s: float
    floor_s: float
    full_floor_s: float
    active: float


def measure(proportions: Proportions, setting: Setting, machine: Machine) -> Step:
    """Decodes the same twice: counting what is needed, then taking time."""
    needs, counted = Needs(), proportions.model(setting)
    needs.follow(counted)
    _decode(counted, setting)
    model, watch = proportions.model(setting), Watch(torch.device(setting.device))
    _decode(model, replace(setting, gen_length=BLOCK_LENGTH))
    watch.follow(model)
    _decode(model, setting)
    # Forwards over a block; others fill the cache.
    widths = [{group.computed for group in groups} for groups in watch.forwards]
    steps = [i for i, found in enumerate(widths) if found == {BLOCK_LENGTH}]
    assert len(watch.forwards) == len(needs.flops), "the two decodes differ"
    seconds = watch.seconds()
    always, of_an_expert = bytes_read(model)
    num_experts = proportions.num_experts * sum(
        isinstance(part, MoE) for part in model.transformer.modules()
    )

    def floor_s(step: int, weight_bytes: int) -> float:
        return max(weight_bytes / machine.bytes_per_s, needs.flops[step] / machine.flops_per_s)

    whole = always + num_experts * of_an_expert
    return Step(
        rows=setting.batch_size,
        step_s=_median([seconds[step] for step in steps]),
        floor_s=_median([floor_s(step, needs.weight_bytes[step]) for step in steps]),
        full_floor_s=_median([floor_s(step, whole) for step in steps]),
        active=_median([needs.num_active[step] for step in steps]) / num_experts,
    )


def _decode(model: MaskedTransformer, setting: Setting) -> None:
    config = model.transformer.config
    generator = torch.Generator().manual_seed(0)
    size = (setting.batch_size, setting.prompt_length)
    prompts = torch.randint(config.vocab_size - 2, size, generator=generator).tolist()
    decode(
        model, prompts, FixedSchedule(setting.steps_per_block), cache=DualCache(),
        gen_length=setting.gen_length, block_length=BLOCK_LENGTH, stop_at_eos=False,
    )  # fmt: skip


def _median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    proportions = Proportions(options.share, options.num_layers, options.num_experts)
    setting = Setting(
        prompt_length=options.prompt_length, gen_length=2 * BLOCK_LENGTH,
        steps_per_block=options.steps, dtype=options.dtype, device=options.device,
        num_threads=options.threads,
    )  # fmt: skip
    torch.set_num_threads(options.threads)
    machine = measure_machine(setting)
    table = Table(
        title=f"Block step of {BLOCK_LENGTH}, {proportions.num_layers} layers x "
        f"{proportions.config().hidden_size}, {proportions.num_experts} experts, 8 a token; "
        f"{machine.bytes_per_s / 1e9:.1f} GB/s, {machine.flops_per_s / 1e9:.0f} GFLOP/s"
    )
    for column in ("rows", "ms", "times floor", "times floor of all experts", "active experts"):
        table.add_column(column, justify="right")
    for rows in options.batch_sizes:
        step = measure(proportions, replace(setting, batch_size=rows), machine)
        table.add_row(
            str(rows), f"{1000 * step.step_s:.1f}", f"{step.step_s / step.floor_s:.2f}",
            f"{step.step_s / step.full_floor_s:.2f}", f"{100 * step.active:.0f}%",
        )  # fmt: skip
    Console(width=120).print(table)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        description="Times the block step of a random mixture of experts of LLaDA2.0-mini's "
        "proportions, and compares it with the least that it can take: weights of the experts that "
        "have a token are read once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--share", type=int, default=4, help="divides all widths; 1: LLaDA2.0-mini's own")
    add("--num-layers", type=int, default=6, help="decoder blocks; LLaDA2.0-mini has 20")
    add("--num-experts", type=int, default=256, help="routed experts of a layer")
    add("--batch-sizes", type=int, nargs="+", default=[1, 4], help="rows")
    add("--prompt-length", type=int, default=256, help="tokens")
    add("--steps", type=int, default=16, help="forwards a block")
    add("--dtype", default="bfloat16", help="of the weights")
    add("--device", default="cpu", help="cpu, cuda, ...")
    add("--threads", type=int, default=2, help="of torch, on the CPU")
    return parser


if __name__ == "__main__":
    main()

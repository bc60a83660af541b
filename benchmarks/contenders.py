"""What is compared: the plain reference loop and `decode` with its options."""

import gc
import time
from dataclasses import dataclass

import torch
from torch import Tensor

import dllm_decode
from benchmarks.measure import Measurement, Timed, peak_bytes
from dllm_decode import CachePolicy, Verifier, decode
from dllm_decode.models import MaskedTransformer, new_llada
from dllm_decode.models.base import Inputs
from samplers import FixedSchedule
from samplers.expression import parse_expression
from tests import reference


@dataclass(frozen=True)
class Setting:
    """One model and one decode, the same for all contenders.

    Attributes:
        hidden_size: Width of the model, in heads of 64.
        num_layers: Depth.
        vocab_size: LLaDA's, since head and softmax are the cost that is measured.
        prompt_length: Tokens.
        gen_length: Tokens.
        block_length: Tokens.
        steps_per_block: Forwards a block.
        batch_size: Rows.
        dtype: Of parameters and activations.
        device: Where it runs.
        num_threads: Of torch, on the CPU.
    """

    hidden_size: int = 512
    num_layers: int = 8
    vocab_size: int = 126_464
    prompt_length: int = 256
    gen_length: int = 128
    block_length: int = 32
    steps_per_block: int = 8
    batch_size: int = 1
    dtype: str = "bfloat16"
    device: str = "cpu"
    num_threads: int = 2

    def model(self) -> MaskedTransformer:
        """Builds the model with random weights, peaked so that no step is decided by a tie."""
        torch.set_num_threads(self.num_threads)
        model = new_llada(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.hidden_size // 64,
            mlp_hidden_size=3 * self.hidden_size,
            mask_id=self.vocab_size - 1,
            eos_ids=(self.vocab_size - 2,),
        )
        with torch.no_grad():
            model.transformer.lm_head.weight.mul_(10.0)
            for layer in model.transformer.layers:
                layer.attention.output.weight.mul_(8.0)
                layer.mlp.down.weight.mul_(8.0)
        return model.to(device=self.device, dtype=getattr(torch, self.dtype)).eval()

    def prompts(self) -> list[list[int]]:
        """Returns random prompts, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch_size, self.prompt_length)
        return torch.randint(self.vocab_size - 2, size, generator=generator).tolist()


def run_reference(setting: Setting) -> Measurement:
    """Runs the loop of the published code: full-canvas head, float64 softmax, one row at a time."""
    timed = Timed(setting.model())
    model_bytes = peak_bytes(timed.device)

    def logits_of(canvas: Tensor) -> Tensor:
        columns = torch.arange(canvas.shape[1], device=timed.device)[None]
        return timed.predict(Inputs(canvas.to(timed.device), positions=columns, wanted=columns))

    logits_of(torch.zeros(1, setting.prompt_length + setting.gen_length, dtype=torch.long))
    timed.model_s = 0.0
    started = time.perf_counter()
    results = [
        reference.fixed_schedule(
            logits_of,
            prompt,
            gen_length=setting.gen_length,
            block_length=setting.block_length,
            steps_per_block=setting.steps_per_block,
            mask_id=timed.mask_id,
        )
        for prompt in setting.prompts()
    ]
    wall_s = time.perf_counter() - started
    forwards = sum(len(result.commits) for result in results)
    columns = setting.prompt_length + setting.gen_length
    return Measurement(
        tokens=[result.tokens for result in results],
        forwards=forwards,
        query_positions=forwards * columns,
        wall_s=wall_s,
        model_s=timed.model_s,
        extra_peak_bytes=peak_bytes(timed.device) - model_bytes,
        model_bytes=model_bytes,
    )


def run_decode(setting: Setting, options: str = "NoCache(), NoVerifier()") -> Measurement:
    """Runs `decode` with the reference's schedule and the given cache and verifier."""
    timed = Timed(setting.model())
    gc.collect()
    model_bytes = peak_bytes(timed.device)
    named = {name: vars(dllm_decode)[name] for name in dllm_decode.__all__}
    cache, verifier = parse_expression(f"tuple_of({options})", {"tuple_of": _tuple_of, **named})
    lengths = {"gen_length": setting.gen_length, "block_length": setting.block_length}
    prompts = setting.prompts()
    decode(timed, prompts, FixedSchedule(1), cache=cache, stop_at_eos=False, **lengths)
    timed.model_s = 0.0
    out = decode(
        timed,
        prompts,
        FixedSchedule(setting.steps_per_block),
        cache=cache,
        verifier=verifier,
        stop_at_eos=False,
        **lengths,
    )
    return Measurement(
        tokens=out.tokens.tolist(),
        forwards=out.forwards,
        query_positions=int(out.query_positions.sum()),
        wall_s=out.wall_s,
        model_s=timed.model_s,
        extra_peak_bytes=peak_bytes(timed.device) - model_bytes,
        model_bytes=model_bytes,
    )


def _tuple_of(cache: CachePolicy, verifier: Verifier) -> tuple[CachePolicy, Verifier]:
    return cache, verifier

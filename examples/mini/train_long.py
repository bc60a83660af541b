"""Trains `mini-long`, a small masked-diffusion model in Dream's format, on ledgers.

    python examples/mini/train_long.py --shares 1 0 0 --minutes 7 --compile --output runs/begun
    python examples/mini/train_long.py --minutes 60 --compile --start-from runs/begun/mini-long

on one core of a CPU. The first run starts from the causal model that `train_long_ar.py` trains, and
teaches it to read a prompt in both directions; a model that meets masks before that forgets how to
look things up. The folder `runs/mini-long` then loads with
`dllm_decode.load_model("runs/mini-long")`. An interrupted run goes on with `--resume`.

`examples/mini/started` holds weights to go on from: docs/embedded_models.md says how far they have
come.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from long_world import Answer, accuracies, arguments, run

from dllm_decode import PrefixCache, decode, load_model
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.load import find_model
from dllm_decode.models.loading.weights import read_json
from dllm_decode.training.block_diffusion import BlockDiffusion
from dllm_decode.training.from_causal import write_fast_dllm_v2
from dllm_decode.training.saving import read_family, save_like
from eval.tasks.ledger_words import build_ledger_tokenizer
from samplers import ConfidenceThreshold, FixedSchedule
from samplers.base import Sampler

STARTED = Path(__file__).parent / "started"
SAMPLERS = {
    "one token a step": FixedSchedule(),
    "threshold": ConfidenceThreshold(0.9),
}


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    parser.add_argument(
        "--start-from",
        default=str(STARTED / "mini-long-ar"),
        help="mini-long-ar or an earlier mini-long",
    )
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--block-length", type=int, default=32, help="of the model")
    parser.add_argument(
        "--block-lengths", type=int, nargs="+", help="of batches; otherwise that of the model"
    )
    parser.add_argument("--ordered-share", type=float, default=0.3, help="masked from the right")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = build_ledger_tokenizer()
    source = find_model(options.start_from)
    if read_json(source / "config.json")["model_type"] == "llama":
        begun = options.output / "mini-long-begun"
        mask_id = int(tokenizer.mask_token_id)
        write_fast_dllm_v2(
            source,
            begun,
            mask_id=mask_id,
            num_layers=options.layers,
            block_length=options.block_length,
        )
        source = begun
    model, _ = load_model(source, device=options.device, dtype=torch.float32)
    model.requires_grad_(True)
    lengths = tuple(options.block_lengths) if options.block_lengths else None
    objective = BlockDiffusion(model, lengths, options.ordered_share)
    if options.compile:
        # The first layer, the last one, and each objective have a version of their own.
        torch._dynamo.config.recompile_limit = 64
        for layer in model.transformer.layers:
            layer.compile(dynamic=True)
    run(options, objective, name="mini-long", export=exporter(options, model, source))


def exporter(
    options: argparse.Namespace, model: MaskedTransformer, source: Path
) -> Callable[[Path], Callable[[], dict[str, float]]]:
    """Returns what writes the model and then measures the files just written."""
    tokenizer = build_ledger_tokenizer()

    def export(folder: Path) -> Callable[[], dict[str, float]]:
        save_like(model, source, folder, family=read_family(source), dtype=torch.bfloat16)
        written, _ = load_model(folder, device=options.device)

        def measure() -> dict[str, float]:
            measured = {}
            for name, sampler in SAMPLERS.items():
                answer = answering(written, sampler)
                right = accuracies(tokenizer, answer, options.evaluate_on)
                measured |= {f"{split}, {name}": value for split, value in right.items()}
            return measured

        return measure

    return export


def answering(model: MaskedTransformer, sampler: Sampler) -> Answer:
    """Returns what answers prompts by `decode`, in one batch."""

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        output = decode(
            model,
            prompts,
            sampler,
            cache=PrefixCache(),
            gen_length=gen_length,
            block_length=model.causal_block_length,
        )
        return output.answers()

    return answer


if __name__ == "__main__":
    main()

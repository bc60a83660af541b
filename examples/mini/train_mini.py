"""Trains `mini`, a small masked-diffusion model in LLaDA's format, on generated problems.

The embedded `mini-ar`, `mini` and `mini-lists` were made by

    python examples/mini/train_mini_ar.py --equations 0 --batch-size 64 --gen-lengths 48 \
        --minutes 32 --threads 1
    python examples/mini/train_mini.py --start-from runs/mini-ar --matrix-lr 0.015 \
        --batch-size 80 --equations 0.25 --minutes 38.5 --threads 1
    python examples/mini/train_mini.py --name mini-lists --word-problems 0 --equations 0 --lists 1 \
        --list-length 0 --batch-size 64 --hidden 96 --layers 4 --mlp 288 --minutes 36 --threads 1 \
        --compile --output runs/first
    python examples/mini/train_mini.py --name mini-lists --word-problems 0 --equations 0 --lists 1 \
        --list-length 0 --batch-size 64 --hidden 96 --layers 4 --mlp 288 --minutes 21 --threads 1 \
        --compile --matrix-lr 0.015 --start-from runs/first/mini-lists

with changes on the way: the first run of `mini-lists` had other shares of the tasks, and `mini`
began when `mini-ar` had 18 of its minutes, and had 128 rows a step, half of them equations, for its
first 22 (`training.json` of each model says so). All ran on one core of a CPU. A GPU takes
`--device cuda --workers 12 --batch-size 512` as well, and larger worlds and models. The folder
`runs/mini` then loads with `dllm_decode.load_model("runs/mini")`. An interrupted run goes on with
`--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from functools import partial
from pathlib import Path

import torch
from recipe import compile_layers, masked_answer, run, sizes
from world import MiniWorld, accuracies, accuracy, world_arguments

from dllm_decode import MaskPredictor, load_model
from dllm_decode.models import MaskedTransformer, new_llada, save_model
from dllm_decode.models.loading.find import find_model
from dllm_decode.training import MaskedDiffusion, MaskSampler
from dllm_decode.training.saving import start_from
from eval.tasks import ListTask
from samplers import ConfidenceThreshold, FixedSchedule

BLOCK_LENGTH = 32
ONE_STEP = {"shuffle": 24 / 256, "replace_any": 27 / 64}
"""Accuracy of drawing all positions at once, lists of four: exact values for a perfect model."""


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    world_arguments(parser)
    parser.add_argument("--name", default="mini", help="of the model and its folder")
    parser.add_argument("--start-from", default="", help="causal model like mini-ar, or masked")
    sizes(parser, num_layers=5)
    parser.add_argument("--block-share", type=float, default=0.5, help="of block states in masks")
    parser.add_argument("--ordered-share", type=float, default=0.5, help="of those, left to right")
    options = parser.parse_args()
    world = MiniWorld(options)
    model = new_llada(
        vocab_size=len(world.tokenizer),
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=options.heads,
        mlp_hidden_size=options.mlp,
        mask_id=int(world.tokenizer.mask_token_id),
        eos_ids=(int(world.tokenizer.eos_token_id),),
        rope_theta=10_000.0,
        name=options.name,
        seed=options.seed,
    ).to(options.device)
    if options.start_from:
        start_from(model, world.tokenizer, find_model(options.start_from))
    if options.compile:
        compile_layers(model.transformer.layers, dynamic=False)
    masks = MaskSampler(BLOCK_LENGTH, options.block_share, options.ordered_share)
    objective = MaskedDiffusion(model, masks)
    run(
        options, objective, world.kinds(), world.tokenizer, name=options.name,
        world=world.describe(), export=partial(export, world, model),
    )  # fmt: skip


def export(world: MiniWorld, model: MaskedTransformer, folder: Path) -> dict[str, float]:
    """Writes the model and then measures the files just written."""
    save_model(model, folder, dtype=torch.bfloat16)
    written, _ = load_model(folder, device=world.options.device)
    return measure(world, written)


def measure(world: MiniWorld, model: MaskPredictor) -> dict[str, float]:
    """Measures accuracy at one token a step, of a threshold, and of a single step where known."""
    one_token = FixedSchedule(steps_per_block=BLOCK_LENGTH)
    measured = accuracies(world, masked_answer(model, one_token, block_length=BLOCK_LENGTH))
    num_examples = world.options.evaluate_on
    if world.options.word_problems:
        threshold = masked_answer(model, ConfidenceThreshold(0.9), block_length=BLOCK_LENGTH)
        found = accuracy(world, world.word_problems(), threshold, num_examples)
        measured["word_problems threshold 0.9"] = found
    if world.options.lists:
        single = masked_answer(
            model, FixedSchedule(steps_per_block=1), block_length=BLOCK_LENGTH, temperature=1.0
        )
        for keyword, exact in ONE_STEP.items():
            task = ListTask(keyword, n=4)
            found = accuracy(world, task, single, 2 * num_examples)
            measured[f"{task.name} n=4, one step (exact {exact:.3f})"] = found
    return measured


if __name__ == "__main__":
    main()

"""Trains `mini-ar`, a small causal model over the tokenizer of `mini`, on the same problems.

    python examples/mini/train_mini_ar.py --minutes 120 --threads 2       # two CPU cores
    python examples/mini/train_mini_ar.py --device cuda --minutes 9 --workers 12 --batch-size 512

The folder `runs/mini-ar` then loads with transformers' `AutoModelForCausalLM`. An interrupted run
goes on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from functools import partial

from recipe import compile_layers, export_causal, new_causal, run, sizes
from transformers.utils.logging import disable_progress_bar
from world import MiniWorld, accuracies, world_arguments

from dllm_decode.training import Causal


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    world_arguments(parser)
    sizes(parser, num_layers=4)
    options = parser.parse_args()
    disable_progress_bar()
    world = MiniWorld(options)
    model = new_causal(options, world.tokenizer)
    if options.compile:
        compile_layers(model.model.layers, dynamic=False)
    run(
        options, Causal(model, int(world.tokenizer.eos_token_id)), world.kinds(), world.tokenizer,
        name="mini-ar", world=world.describe(),
        export=partial(export_causal, model, world.tokenizer, partial(accuracies, world)),
    )  # fmt: skip


if __name__ == "__main__":
    main()

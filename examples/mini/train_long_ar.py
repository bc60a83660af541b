"""Trains `mini-long-ar`, a small causal model that answers ledgers.

    python examples/mini/train_long_ar.py --minutes 60 --compile

The embedded model began with a model of other ledgers, which is not kept, as OLDER:

    python examples/mini/train_long_ar.py --minutes 22 --rows 56 --stories 16 --seed 9 --compile \
        --start-from OLDER --output runs/first
    python examples/mini/train_long_ar.py --minutes 11 --rows 48 --stories 32 --matrix-lr 0.01 \
        --compile --start-from runs/first/mini-long-ar

The folder `runs/mini-long-ar` then loads with transformers' `AutoModelForCausalLM`. An interrupted
run goes on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from functools import partial

import torch
from long_world import WORLD, Encoder, accuracies, arguments, kinds_of
from recipe import compile_layers, export_causal, new_causal, run, sizes
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar
from vocabulary import build_ledger_tokenizer

from dllm_decode.models.loading.find import find_model
from dllm_decode.training import Causal
from dllm_decode.training.saving import copy_by_words


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    parser.add_argument("--start-from", default="mini-ar", help="model of these sizes, '': none")
    sizes(parser, num_layers=4)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    tokenizer = build_ledger_tokenizer()
    model = new_causal(options, tokenizer)
    # Faster on a CPU than fused attention, whose backward is slow.
    model.set_attn_implementation("eager")
    if options.start_from:
        folder = find_model(options.start_from)
        copy_by_words(
            dict(model.named_parameters()),
            tokenizer.get_vocab(),
            load_file(folder / "model.safetensors"),
            AutoTokenizer.from_pretrained(folder).get_vocab(),
            by_word=("model.embed_tokens.weight", "lm_head.weight"),
        )
    if options.compile:
        compile_layers(model.model.layers, dynamic=True)
    run(
        options, Causal(model, int(tokenizer.eos_token_id)), kinds_of(options, Encoder(tokenizer)),
        tokenizer, name="mini-long-ar", world=WORLD,
        export=partial(
            export_causal, model, tokenizer, partial(accuracies, tokenizer, options.evaluate_on)
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()

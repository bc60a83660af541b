"""Trains `mini-ar`, a small causal model over the tokenizer of `mini`, on the same problems.

    python examples/mini/train_mini_ar.py --minutes 120 --threads 2       # two CPU cores
    python examples/mini/train_mini_ar.py --device cuda --minutes 9 --workers 12 --batch-size 512

The folder `runs/mini-ar` then loads with transformers' `AutoModelForCausalLM`. An interrupted run
goes on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar
from world import World, accuracies, run, stop, world_arguments

from dllm_decode.training import Causal


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    world_arguments(parser)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp", type=int, default=384)
    options = parser.parse_args()
    disable_progress_bar()
    world = World.of(options)
    kinds = world.kinds()
    rows = world.rows(kinds)
    eos_id = int(world.tokenizer.eos_token_id)
    config = LlamaConfig(
        vocab_size=len(world.tokenizer),
        hidden_size=options.hidden,
        intermediate_size=options.mlp,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=eos_id,
        # Padding is EOS, and the embedding of padding would get no gradient.
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(config)
    model.to(options.device)
    if options.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    objective = Causal(model, eos_id)
    run(world, objective, kinds, rows, name="mini-ar", export=exporter(world, model))
    stop(rows)


def exporter(
    world: World, model: PreTrainedModel
) -> Callable[[Path], Callable[[str], dict[str, float]]]:
    """Returns what writes the model and then measures the files just written."""
    eos_id = int(world.tokenizer.eos_token_id)

    def export(folder: Path) -> Callable[[str], dict[str, float]]:
        plain = deepcopy(model).bfloat16()
        plain.config.pad_token_id = plain.generation_config.pad_token_id = eos_id
        plain.save_pretrained(folder)
        world.tokenizer.save_pretrained(folder)
        written = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        written.to(world.options.device).eval()
        return lambda split: accuracies(world, answering(written), split)

    return export


def answering(model: PreTrainedModel) -> Callable[[list[list[int]], int], list[list[int]]]:
    """Returns what answers prompts greedily, in batches."""
    eos_id = model.config.eos_token_id
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]  # untyped

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, len(prompts), 512):
            batch = prompts[start : start + 512]
            width = max(map(len, batch))
            tokens = torch.tensor([[eos_id] * (width - len(p)) + p for p in batch])
            attend = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
            generated = generate(
                input_ids=tokens.to(model.device),
                attention_mask=attend.to(model.device),
                max_new_tokens=gen_length,
                do_sample=False,
            )
            for ids in generated[:, width:].tolist():
                found.append(ids[: ids.index(eos_id)] if eos_id in ids else ids)
        return found

    return answer


if __name__ == "__main__":
    main()

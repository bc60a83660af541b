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

import argparse
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from long_world import Answer, accuracies, arguments, run
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar
from vocabulary import build_ledger_tokenizer

from dllm_decode.models.loading.load import find_model
from dllm_decode.training import Causal
from dllm_decode.training.from_model import copy_by_words


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    parser.add_argument("--start-from", default="mini-ar", help="model of these sizes, '': none")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp", type=int, default=384)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    tokenizer = build_ledger_tokenizer()
    eos_id = int(tokenizer.eos_token_id)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
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
        # Faster on a CPU than fused attention, whose backward is slow.
        attn_implementation="eager",
    )
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(config).to(options.device)
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
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    run(options, Causal(model, eos_id), name="mini-long-ar", export=exporter(options, model))


def exporter(
    options: argparse.Namespace, model: PreTrainedModel
) -> Callable[[Path], Callable[[], dict[str, float]]]:
    """Returns what writes the model and then measures the files just written."""
    tokenizer = build_ledger_tokenizer()
    eos_id = int(tokenizer.eos_token_id)

    def export(folder: Path) -> Callable[[], dict[str, float]]:
        plain = deepcopy(model).bfloat16()
        plain.config.pad_token_id = plain.generation_config.pad_token_id = eos_id
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        written = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        written.to(options.device).eval()
        return lambda: accuracies(tokenizer, answering(written), options.evaluate_on)

    return export


def answering(model: PreTrainedModel) -> Answer:
    """Returns what answers prompts greedily, in batches."""
    eos_id = model.config.eos_token_id
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]  # untyped

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        found: list[list[int]] = []
        for start in range(0, len(prompts), 128):
            batch = prompts[start : start + 128]
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

"""Trains `mini-long`, a small masked-diffusion model in Fast-dLLM v2's format, on ledgers.

The embedded model was made on one core of a CPU by

    python examples/mini/train_long.py --minutes 40 --block-lengths 1 2 4 8 8 8 --matrix-lr 0.02 \
        --confident-share 0 --rows 40 --stories 8 --compile --output runs/first
    python examples/mini/train_long.py --minutes 32 --matrix-lr 0.012 --rows 40 --stories 8 \
        --compile --start-from runs/first/mini-long --output runs/second
    python examples/mini/train_long.py --minutes 14.5 --matrix-lr 0.008 --phrases-share 0.35 \
        --rows 40 --stories 16 --compile --start-from runs/second/mini-long --output runs/third
    python examples/mini/train_long.py --minutes 32 --matrix-lr 0.01 --phrases-share 0.1 \
        --rows 32 --stories 28 --compile --start-from runs/third/mini-long --output runs

The first run starts from the causal model that `train_long_ar.py` trains. Its stories, and those of
the next two, had two to four steps; the last run has the stories of `STORIES`. The folder
`runs/mini-long` then loads with `dllm_decode.load_model("runs/mini-long")`. An interrupted run goes
on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from long_world import WORLD, Encoder, accuracies, arguments, kinds_of
from recipe import compile_layers, masked_answer, run
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from vocabulary import CONNECTIVES, build_ledger_tokenizer

from dllm_decode import PrefixCache, load_model, save_model
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.find import find_model
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.training import Batch, Objective
from dllm_decode.training.block_diffusion import BlockDiffusion, hidden_of_copies
from dllm_decode.training.saving import write_fast_dllm_v2
from samplers import ConfidenceThreshold, FixedSchedule

SAMPLERS = {"one token a step": FixedSchedule(), "threshold": ConfidenceThreshold(0.9)}


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    add = parser.add_argument
    add("--start-from", default="mini-long-ar", help="mini-long-ar or an earlier mini-long")
    add("--layers", type=int, default=5)
    add("--block-length", type=int, default=8, help="of the model")
    add("--block-lengths", type=int, nargs="+", help="of batches; otherwise that of the model")
    add("--ordered-share", type=float, default=0.3, help="masked from the right")
    add("--confident-share", type=float, default=0.5, help="masked by confidence")
    add("--phrases-share", type=float, default=0.0, help="of the loss `Phrases`")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = build_ledger_tokenizer()
    source = find_model(options.start_from)
    if read_json(source / "config.json")["model_type"] == "llama":
        begun = options.output / "mini-long-begun"
        write_fast_dllm_v2(
            source, begun, mask_id=int(tokenizer.mask_token_id), num_layers=options.layers,
            block_length=options.block_length,
        )  # fmt: skip
        source = begun
    model, _ = load_model(source, device=options.device, dtype=torch.float32)
    model.requires_grad_(True)
    lengths = tuple(options.block_lengths) if options.block_lengths else None
    blocks = BlockDiffusion(model, lengths, options.ordered_share, options.confident_share)
    objective = Phrases(blocks, tokenizer, options.phrases_share)
    if options.compile:
        compile_layers(model.transformer.layers, dynamic=True)
    run(
        options, objective, kinds_of(options, Encoder(tokenizer)), tokenizer, name="mini-long",
        world=WORLD, export=partial(export, options, model),
    )  # fmt: skip


class Phrases(Objective[Batch]):
    """In a share of the batches the loss of two phrases, in the others that of `blocks`.

    It is the mean cross-entropy of the first word of "so now" and "which means", given all the
    rest. Only the second word tells which phrase it is. A model that begins as a causal one has
    never looked at a later word, and this is the one place where it has to. Among all other masks
    that was not learned in 118 thousand rows, and "so means" was written in most answers.
    """

    def __init__(
        self, blocks: BlockDiffusion, tokenizer: PreTrainedTokenizerBase, share: float
    ) -> None:
        self.model = blocks.model
        self._blocks, self._share = blocks, share
        phrases = [tokenizer.convert_tokens_to_ids(phrase.split()) for phrase in CONNECTIVES]
        self._first, self._second = torch.tensor(phrases).unbind(1)

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Draws which loss, hides words of the batch and returns their mean loss, in nats."""
        if torch.rand((), generator=generator, device=generator.device) >= self._share:
            return self._blocks.loss(batch, generator)
        block_length = self.model.causal_block_length
        blocks = batch.blocks(block_length)
        same = F.pad(blocks[:, 1:] == blocks[:, :-1], (1, 1))
        tokens = batch.tokens
        first, second = self._first.to(tokens.device), self._second.to(tokens.device)
        begins = torch.isin(tokens, first) & same[:, :-1] & same[:, 1:]
        begins[:, :-1] &= torch.isin(tokens[:, 1:], second)
        masked = begins[:, batch.start :]
        hidden = hidden_of_copies(self.model, batch, masked, block_length)
        logits = self.model.transformer.head(hidden[masked])
        answers = batch.answers[masked]
        total = F.cross_entropy(logits.float(), answers, reduction="sum")
        # A batch may have no phrase within a block.
        return total / max(1, len(answers))


def export(options: argparse.Namespace, model: MaskedTransformer, folder: Path) -> dict[str, float]:
    """Writes the model and then measures the files just written."""
    save_model(model, folder, dtype=torch.bfloat16)
    written, tokenizer = load_model(folder, device=options.device)
    measured = {}
    for name, sampler in SAMPLERS.items():
        answer = masked_answer(
            written, sampler, cache=PrefixCache(), block_length=written.causal_block_length
        )
        right = accuracies(tokenizer, options.evaluate_on, answer)
        measured |= {f"{split}, {name}": value for split, value in right.items()}
    return measured


if __name__ == "__main__":
    main()

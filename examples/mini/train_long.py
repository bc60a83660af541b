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
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from long_world import Answer, Encoder, accuracies, arguments, run
from torch import Tensor

from dllm_decode import CachePolicy, DualCache, MaskPredictor, NoCache, decode, load_model
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.load import find_model
from dllm_decode.models.loading.weights import read_json
from dllm_decode.training import Batch, Objective
from dllm_decode.training.block_causal import AllBlocks
from dllm_decode.training.from_causal import write_dream
from dllm_decode.training.next_token import NextToken
from dllm_decode.training.saving import read_family, save_like
from dllm_decode.training.segments import SegmentDiffusion, SegmentSampler
from eval.tasks.ledger_words import build_ledger_tokenizer
from eval.tasks.ledgers import Ledgers
from samplers import ConfidenceThreshold
from samplers.base import Sampler

BLOCK_LENGTH = 32
STARTED = Path(__file__).parent / "started"
LINE_LENGTH = 17
PLACES = {"amount": 3, "before": 5, "after": 9}
NO_CACHE = NoCache()


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
    parser.add_argument("--block-lengths", type=int, nargs="+", default=[8, 16, 32, 32])
    parser.add_argument(
        "--shares", type=float, nargs=3, default=[0.0, 0.8, 0.2],
        help="of the batches: next token, all blocks, one segment",
    )  # fmt: skip
    parser.add_argument("--anywhere-share", type=float, default=0.35, help="of LLaDA's states")
    parser.add_argument("--ordered-share", type=float, default=0.5, help="of segments")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = build_ledger_tokenizer()
    source = find_model(options.start_from)
    if read_json(source / "config.json")["model_type"] == "llama":
        begun = options.output / "mini-long-begun"
        mask_id = int(tokenizer.mask_token_id)
        write_dream(source, begun, mask_id=mask_id, num_layers=options.layers)
        source = begun
    model, _ = load_model(source, device=options.device, dtype=torch.float32)
    model.requires_grad_(True)
    states = SegmentSampler(BLOCK_LENGTH, options.ordered_share, options.anywhere_share)
    block_lengths = tuple(options.block_lengths)
    losses = (
        NextToken(model),
        AllBlocks(model, block_lengths, ordered_share=0.3, whole_share=0.5),
        SegmentDiffusion(model, states),
    )
    objective = OneOf(losses, options.shares)
    if options.compile:
        # The first layer, the last one, and each objective have a version of their own.
        torch._dynamo.config.recompile_limit = 64
        for layer in model.transformer.layers:
            layer.compile(dynamic=True)
    run(options, objective, name="mini-long", export=exporter(options, model, source))


class OneOf(Objective):
    """One of several losses of a model, drawn anew for each batch.

    Args:
        losses: Of the same model.
        shares: How often each is drawn, in any unit.
    """

    def __init__(self, losses: Sequence[Objective], shares: Sequence[float]) -> None:
        self.model, self.eos_id = losses[0].model, losses[0].eos_id
        self._losses = losses
        self._shares = torch.tensor(shares)

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the loss that was drawn."""
        drawn = int(self._shares.to(generator.device).multinomial(1, generator=generator))
        return self._losses[drawn].loss(batch, generator)


def exporter(
    options: argparse.Namespace, model: MaskedTransformer, source: Path
) -> Callable[[Path], Callable[[], dict[str, float]]]:
    """Returns what writes the model and then measures the files just written."""
    tokenizer = build_ledger_tokenizer()

    def export(folder: Path) -> Callable[[], dict[str, float]]:
        save_like(model, source, folder, family=read_family(source), dtype=torch.bfloat16)
        written, _ = load_model(folder, device=options.device)

        def measure() -> dict[str, float]:
            answer = answering(written, ConfidenceThreshold(0.9), DualCache())
            given = given_the_rest(written, options.evaluate_on)
            return accuracies(tokenizer, answer, options.evaluate_on) | given

        return measure

    return export


def answering(model: MaskPredictor, sampler: Sampler, cache: CachePolicy = NO_CACHE) -> Answer:
    """Returns what answers prompts by `decode`, in one batch."""

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        output = decode(
            model,
            prompts,
            sampler,
            cache=cache,
            gen_length=gen_length,
            block_length=BLOCK_LENGTH,
        )
        return output.answers()

    return answer


def given_the_rest(model: MaskedTransformer, num_examples: int) -> dict[str, float]:
    """Measures single tokens of right answers, everything before them known, nothing behind.

    Amounts are to be found in the question, what was there before in an earlier line; what is there
    after is arithmetic.
    """
    encode = Encoder(build_ledger_tokenizer())
    rng = random.Random(0)
    tasks = Ledgers().examples("val", num_examples)
    pairs = [encode(str(each.prompt), each.target) for each in tasks]
    measured = {}
    for name, place in PLACES.items():
        right = 0
        for prompt, answer in pairs:
            start = LINE_LENGTH * rng.randrange(len(answer) // LINE_LENGTH) + place
            tokens = [*prompt, *answer[:start], *[model.mask_id] * (192 - start)]
            with torch.inference_mode():
                hidden = model.transformer(torch.tensor([tokens]))
                logits = model.transformer.head(hidden[0, len(prompt) + start - model.logit_shift])
            right += int(logits.argmax()) == answer[start]
        measured[f"val {name}"] = right / len(pairs)
    return measured


if __name__ == "__main__":
    main()

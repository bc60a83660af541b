"""Trains `mini-any`, a tiny XLNet that predicts any tokens from any others, on `mini`'s problems.

The embedded `mini-any` was made by

    python examples/mini/train_mini_any.py --minutes 35 --threads 1

on one core of a CPU. An interrupted run goes on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from recipe import run, sizes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import XLNetConfig, XLNetLMHeadModel
from transformers.utils.logging import disable_progress_bar
from world import MiniWorld, accuracies, world_arguments

from dllm_decode import decode_many, load_model
from dllm_decode.training import Batch, Objective
from dllm_decode.verify import AnySubsetVerify
from samplers import ConfidenceThreshold

PROJECTIONS = ("q", "k", "v", "o", "r")


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    world_arguments(parser)
    sizes(parser, num_layers=4)
    parser.add_argument("--given-share", type=float, default=0.3, help="of rows to be filled in")
    parser.add_argument("--draft-share", type=float, default=0.25, help="of rows seen by drafts")
    parser.set_defaults(equations=0.0, gen_lengths=[48], batch_size=64, evaluate_on=128)
    options = parser.parse_args()
    disable_progress_bar()
    world = MiniWorld(options)
    network = new_network(options, world)
    train_matrices(network)
    objective = AnySubsetLoss(network, options.given_share, options.draft_share)
    run(
        options, objective, world.kinds(), world.tokenizer, name="mini-any",
        world=world.describe(), export=partial(export, world, network),
    )  # fmt: skip


def new_network(options: argparse.Namespace, world: MiniWorld) -> XLNetLMHeadModel:
    """Returns a new model of the sizes that the options say."""
    eos_id = world.tokenizer.eos_token_id
    config = XLNetConfig(
        vocab_size=len(world.tokenizer), d_model=options.hidden, n_layer=options.layers,
        n_head=options.heads, d_inner=options.mlp, dropout=0.0, bos_token_id=None,
        eos_token_id=eos_id, pad_token_id=eos_id, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(options.seed)
    return XLNetLMHeadModel(config).to(options.device)


class HeadsOfMatrix(nn.Module):
    """Makes a projection of an XLNet of a matrix, which is what Muon takes."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, matrix: Float[Tensor, "H D"]) -> Float[Tensor, "H N d"]:
        return matrix.unflatten(1, (self.num_heads, -1))

    def right_inverse(self, weight: Float[Tensor, "H N d"]) -> Float[Tensor, "H D"]:
        return weight.flatten(1)


def train_matrices(network: XLNetLMHeadModel) -> None:
    """Lets the projections of a model be trained as matrices."""
    for layer in network.transformer.layer:
        for name in PROJECTIONS:
            heads = HeadsOfMatrix(network.config.n_head)
            parametrize.register_parametrization(layer.rel_attn, name, heads)


@dataclass(eq=False)
class AnySubsetLoss(Objective[Batch]):
    """Mean cross-entropy of the open positions of answers, in ascending order.

    The prompt is read both ways. In some rows part of the answer is given as well, a share that is
    uniform on [0, 1]. In some rows the open positions from one on, which is drawn uniformly, do not
    see each other, as when they are drafted.

    Source: Guo and Ermon 2025, https://arxiv.org/abs/2504.20456, the joint loss.
    Differs: Some rows are trained as drafts see them.

    Attributes:
        model: The network.
        given_share: Probability that part of an answer is given.
        draft_share: Probability that a row has drafts.
    """

    model: XLNetLMHeadModel
    given_share: float
    draft_share: float

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Draws what is given, and returns the mean loss in nats."""
        tokens, start, answers = batch.tokens, batch.start, batch.answers
        width, device = tokens.shape[1], tokens.device
        uniform = torch.rand(4, len(tokens), 1, generator=generator, device=device)
        share = torch.where(uniform[0] < self.given_share, uniform[1], 0.0)
        scores = torch.rand(answers.shape, generator=generator, device=device)
        given = F.pad(scores < share, (start, 0), value=True)
        first = start + (batch.gen_length * uniform[3]).long()
        first = torch.where(uniform[2] < self.draft_share, first, width)
        hidden = ~self.seen(batch, given, first)
        columns = torch.arange(width, device=device)
        targets = F.one_hot(columns[start:], width).float().expand(len(tokens), -1, -1)
        logits = self.model(
            tokens, perm_mask=hidden.float(), target_mapping=targets, use_mems=False
        ).logits
        losses = F.cross_entropy(logits.float().transpose(1, 2), answers, reduction="none")
        is_open = ~given[:, start:]
        return (losses * is_open).sum() / is_open.sum()

    def seen(
        self, batch: Batch, given: Bool[Tensor, "B L"], first: Tensor
    ) -> Bool[Tensor, "B L L"]:
        """Says which columns each column sees; no open column from `first` on is seen."""
        columns = torch.arange(given.shape[1], device=given.device)
        before = (columns < columns[:, None]) & (columns < first)[:, None]
        seen = given[:, None] | (before & ~given[..., None])
        return seen & batch.in_row[:, None] & (columns != columns[:, None])


def write(network: XLNetLMHeadModel, folder: Path) -> None:
    """Writes a model whose projections are trained as matrices, in bfloat16."""
    plain = XLNetLMHeadModel(network.config)
    held = plain.state_dict()
    for name, weight in network.state_dict().items():
        own = name.replace("parametrizations.", "").removesuffix(".original")
        held[own].copy_(weight.view_as(held[own]))
    plain.bfloat16().save_pretrained(folder)


def export(world: MiniWorld, network: XLNetLMHeadModel, folder: Path) -> dict[str, float]:
    """Writes the model and then measures the files just written, one token a forward."""
    write(network, folder)
    written, _ = load_model(folder, device=world.options.device, dtype="float32")

    def answer(prompts: list[list[int]], gen_length: int) -> list[list[int]]:
        outputs = decode_many(
            written, prompts, ConfidenceThreshold(0.9), num_rows=128, verifier=AnySubsetVerify(1),
            gen_length=gen_length,
        )  # fmt: skip
        return [output.answers()[0] for output in outputs]

    return accuracies(world, answer)


if __name__ == "__main__":
    main()

"""Trains `mini-uniform`, a tiny DiffusionGemma, on the word problems of `mini`.

One file, because a recipe is read from top to bottom.

    python examples/mini/train_mini_uniform.py --minutes 45 --batch-size 64 --compile \
        --matrix-lr 0.012 --output runs/first
    python examples/mini/train_mini_uniform.py --minutes 37 --batch-size 64 --compile \
        --matrix-lr 0.012 --seed 1 --start-from runs/first/mini-uniform --output runs/second
    python examples/mini/train_mini_uniform.py --minutes 27 --batch-size 64 --compile \
        --matrix-lr 0.012 --seed 2 --start-from runs/second/mini-uniform

trained the embedded model; the first run was cut off after 8 minutes. The first two had a third of
a core, the last one most of it: 42 minutes of a core in all, for 105 thousand problems.
The folder `runs/mini-uniform` then loads with `dllm_decode.load_model("runs/mini-uniform")`. An
interrupted run goes on with `--resume`.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from recipe import compile_layers, masked_answer, run, sizes
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.diffusion_gemma.modeling_diffusion_gemma import DiffusionGemmaDecoderModel
from transformers.utils.logging import disable_progress_bar
from world import MiniWorld, accuracies, world_arguments

from dllm_decode import FreeCache, load_model
from dllm_decode.models.loading.find import find_model
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.training import Batch, Objective
from dllm_decode.training.examples import lay_out
from dllm_decode.training.masked_diffusion import align_left
from samplers import AcceptAndRenoise

CANVAS_LENGTH = 8

LEARNED = AcceptAndRenoise()
"""The sampler whose states are learned."""


def main() -> None:
    """Trains, measures and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    world_arguments(parser)
    sizes(parser, num_layers=5)
    parser.add_argument(
        "--start-from", default="mini-ar", help="mini-ar or an earlier mini-uniform"
    )
    parser.add_argument("--causal-weight", type=float, default=0.5, help="of the encoder's loss")
    parser.set_defaults(equations=0.0, gen_lengths=[48], evaluate_on=128)
    options = parser.parse_args()
    disable_progress_bar()
    world = MiniWorld(options)
    folder = find_model(options.start_from)
    if read_json(folder / "config.json")["model_type"] == "llama":
        network = new_network(options, world.tokenizer)
        start_from(network, LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), world)
    else:
        network = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=torch.float32)
    network.to(options.device).set_experts_implementation("one_expert")
    if options.compile:
        compile_layers(network.model.decoder.layers, dynamic=False)
    objective = UniformStateLoss(
        network.model.decoder, options.prompt_length, options.causal_weight
    )
    run(
        options, objective, world.kinds(), world.tokenizer, name="mini-uniform",
        world=world.describe(), export=partial(export, world, network),
    )  # fmt: skip


def new_network(
    options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> DiffusionGemmaForBlockDiffusion:
    """Returns a new model of the sizes that the options say.

    All layers attend to the whole context, in a window that is longer than any answer. The single
    expert of each layer and the image encoder are as small as the format allows.
    """
    head_dim = options.hidden // options.heads
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": options.hidden,
        "intermediate_size": options.mlp, "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads, "num_key_value_heads": options.heads,
        "head_dim": head_dim, "hidden_activation": "silu", "max_position_embeddings": 512,
        "sliding_window": 512,
        "layer_types": ["sliding_attention"] * (options.layers - 1) + ["full_attention"],
        "per_layer_config": {options.layers - 1: {"head_dim": head_dim}},
        "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
        "num_experts": 1, "top_k_experts": 1, "moe_intermediate_size": 8,
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        # Padding is EOS, and the embedding of padding would get no gradient.
        "pad_token_id": None,
    }  # fmt: skip
    vision = {
        "model_type": "gemma4_vision", "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
        "global_head_dim": 8, "patch_size": 2, "position_embedding_size": 2,
    }  # fmt: skip
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=CANVAS_LENGTH,
        boi_token_id=None, eoi_token_id=None, image_token_id=None,
    )  # fmt: skip
    torch.manual_seed(options.seed)
    network = DiffusionGemmaForBlockDiffusion(config).float()
    network.generation_config.update(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id
    )
    return network


@torch.no_grad()
def start_from(
    network: DiffusionGemmaForBlockDiffusion, source: LlamaForCausalLM, world: MiniWorld
) -> None:
    """Copies the layers of a causal model, the first ones of the network, and its embedding.

    DiffusionGemma normalises queries, keys, values and the result of each branch, Llama does not.
    The weights of these norms become the mean magnitudes in the causal model, so that the network
    begins near to it.
    """
    eos_id = int(world.tokenizer.eos_token_id)
    words, *_ = world.kinds()
    tokens, _ = align_left(
        lay_out(words.pairs("start", eos_id), words.gen_lengths[0], eos_id), eos_id
    )
    squares: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        squares[module] = output.square().mean((0, 1))

    def size(module: nn.Module) -> Tensor:
        return squares[module].mean().sqrt()

    for module in source.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.register_forward_hook(note)
    source.model(input_ids=tokens, use_cache=False)
    embedding, head = source.model.embed_tokens.weight, source.lm_head.weight
    decoder, scale = network.model.decoder, size(source.model.embed_tokens)
    counts = torch.bincount(tokens.flatten(), minlength=len(head)).float()
    common, largest = (counts + 0.1).sqrt()[:, None], head.square().mean().sqrt()
    # Embedding and head are one here: the head's, and a map from it to the embedding.
    to_embedding = torch.linalg.lstsq(common * head / largest, common * embedding / scale).solution
    decoder.embed_tokens.weight.copy_(head / largest / decoder.embed_tokens.embed_scale)
    decoder.norm.weight.copy_(source.model.norm.weight)
    decoder.norm.weight.mul_(largest * decoder.embed_tokens.embed_scale)
    for layer, known in zip(decoder.layers, source.model.layers, strict=False):
        weights, head_dim = known.state_dict(), layer.self_attn.head_dim
        weights["pre_feedforward_layernorm.weight"] = weights.pop("post_attention_layernorm.weight")
        layer.load_state_dict(weights, strict=False)
        ours, theirs = layer.self_attn, known.self_attn
        ours.q_norm.weight.fill_(size(theirs.q_proj) * head_dim**-0.25)
        ours.k_norm.weight.fill_(size(theirs.k_proj) * head_dim**-0.25)
        heads = squares[theirs.v_proj].unflatten(0, (-1, head_dim)).mean(-1).sqrt()
        ours.o_proj.weight.mul_(heads.repeat_interleave(head_dim))
        layer.post_attention_layernorm.weight.fill_(size(theirs.o_proj) / scale)
        layer.post_feedforward_layernorm.weight.fill_(size(known.mlp.down_proj) / scale)
        layer.post_feedforward_layernorm_2.weight.zero_()
    first = decoder.layers[0]
    for projection in (first.self_attn.q_proj, first.self_attn.k_proj, first.self_attn.v_proj):
        projection.weight.copy_(projection.weight * first.input_layernorm.weight @ to_embedding.T)
    first.input_layernorm.weight.fill_(1.0)


@dataclass(eq=False)
class UniformStateLoss(Objective[Batch]):
    """Mean cross-entropy of all tokens of canvases that are partly noise.

    Each canvas of an answer is seen after the true tokens before it. A token of a canvas is
    replaced by a uniformly random one with a probability that is uniform on [0, 1], or 1 in a
    fifth of the canvases. Half of the rows take a step of the sampler from there: the model's own
    tokens are accepted by their entropies, all others are noise, and the loss is that of the next
    step, which reads the belief. Canvases after the one in which an answer ends are not learned.

    The encoder's next tokens are learned as well: it shares its weights with the decoder, and
    words and sums are learned sooner from left to right.

    Source: DiffusionGemma 2026, transformers 5.23, for both passes and for the states of the
    sampler; Chen et al. 2022, "Analog Bits", https://arxiv.org/abs/2208.04202, for the rows with
    and without a belief. How DiffusionGemma was trained is not published.

    Attributes:
        model: The decoder of a DiffusionGemma, which has all weights of the encoder and the head.
        prompt_length: Columns of the prompts of all batches, so that there is a single shape.
        causal_weight: Of the encoder's loss.
    """

    model: DiffusionGemmaDecoderModel
    prompt_length: int
    causal_weight: float

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Corrupts the canvases of a batch and returns the mean loss, in nats."""
        short = self.prompt_length - batch.start
        eos_id = self.model.text_config.eos_token_id
        batch = Batch(
            F.pad(batch.tokens, (short, 0), value=eos_id), batch.pads + short, batch.gen_length
        )
        answers, half = batch.answers, len(batch.tokens) // 2
        canvases = self.corrupted(answers, generator)
        first = Batch(batch.tokens[:half], batch.pads[:half], batch.gen_length)
        with torch.no_grad():
            _, logits = self.logits(first, canvases[:half])
            low, high = LEARNED.t_min, LEARNED.t_max
            uniform = torch.rand(half, 1, 1, generator=generator, device=logits.device)
            belief = logits / (low + (high - low) * uniform)
            canvases = torch.cat((self.next_canvases(belief, generator), canvases[half:]))
        causal, found = self.logits(batch, canvases, belief)
        ends = batch.ends([eos_id])
        positions = torch.arange(batch.gen_length, device=answers.device)
        blocks = positions // CANVAS_LENGTH <= ends // CANVAS_LENGTH
        return F.cross_entropy(found[blocks], answers[blocks]) + self.causal_weight * (
            F.cross_entropy(causal[positions <= ends], answers[positions <= ends])
        )

    def corrupted(
        self, answers: Int[Tensor, "B G"], generator: torch.Generator
    ) -> Int[Tensor, "B G"]:
        """Replaces tokens by random ones, in each canvas another share of them."""
        num_rows, gen_length = answers.shape
        device = answers.device
        level = 1.25 * torch.rand(
            num_rows, gen_length // CANVAS_LENGTH, generator=generator, device=device
        )
        kept = torch.rand(num_rows, gen_length, generator=generator, device=device)
        kept = kept >= level.repeat_interleave(CANVAS_LENGTH, 1)
        return torch.where(kept, answers, self.noise(answers, generator))

    def noise(self, like: Int[Tensor, "B G"], generator: torch.Generator) -> Int[Tensor, "B G"]:
        """Draws uniformly random tokens."""
        vocab_size = self.model.text_config.vocab_size
        return torch.randint(vocab_size, like.shape, generator=generator, device=like.device)

    def next_canvases(
        self, belief: Float[Tensor, "B G V"], generator: torch.Generator
    ) -> Int[Tensor, "B G"]:
        """Takes a step of `AcceptAndRenoise` in each canvas."""
        probabilities = belief.softmax(-1)
        drawn = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator)
        entropy = torch.special.entr(probabilities).sum(-1).unflatten(1, (-1, CANVAS_LENGTH))
        ordered, order = entropy.sort(-1)
        fits = ordered.cumsum(-1) - ordered <= LEARNED.entropy_bound
        accepted = fits.gather(-1, order.argsort(-1)).flatten(1)
        drawn = drawn.view_as(accepted)
        return torch.where(accepted, drawn, self.noise(drawn, generator))

    def logits(
        self,
        batch: Batch,
        canvases: Int[Tensor, "B G"],
        belief: Float[Tensor, "H G V"] | None = None,
    ) -> tuple[Float[Tensor, "B G V"], Float[Tensor, "B G V"]]:
        """Predicts the answers, by the encoder from left to right and by the decoder.

        Both share their weights, so that one forward computes them: the columns of the batch, and
        the canvases as further columns.

        Args:
            batch: Prompts and answers.
            canvases: The answers with noise.
            belief: The belief of the first rows; the others have none.
        """
        decoder: Any = self.model
        embed, config = decoder.embed_tokens, decoder.text_config
        signal = torch.zeros_like(embed(canvases))
        if belief is not None:
            soft = belief.softmax(-1) @ embed.weight * embed.embed_scale
            signal = F.pad(soft, (0, 0, 0, 0, 0, len(signal) - len(soft)))
        denoised = decoder.self_conditioning(embed(canvases), signal)
        hidden = torch.cat((embed(batch.tokens), denoised), 1)
        positions = batch.rotary_positions
        positions = torch.cat((positions, positions[:, batch.start :]), 1)
        mask = seen(batch)
        for kind, layer in zip(config.layer_types, decoder.layers, strict=True):
            turned = decoder.rotary_emb(hidden, positions, kind)
            hidden = layer(hidden, position_embeddings=turned, attention_mask=mask)
        hidden = decoder.norm(hidden[:, batch.start - 1 :])
        cap = config.final_logit_softcapping
        logits = cap * torch.tanh(F.linear(hidden, embed.weight).float() / cap)
        return logits[:, : batch.gen_length], logits[:, -batch.gen_length :]


def seen(batch: Batch) -> Bool[Tensor, "B 1 Q Q"]:
    """Says which columns each column sees, of a batch and then of its canvases."""
    width, start = batch.tokens.shape[1], batch.start
    columns = torch.arange(width, device=batch.tokens.device)
    canvas = (columns[start:] - start) // CANVAS_LENGTH
    known = columns >= batch.pads[:, None, None]
    causal = columns <= columns[:, None]
    before = columns < start + CANVAS_LENGTH * canvas[:, None]
    same = canvas == canvas[:, None]
    encoder = F.pad(causal & known | (columns == columns[:, None]), (0, len(canvas)))
    decoder = torch.cat((before & known, same.expand(len(known), -1, -1)), 2)
    return torch.cat((encoder, decoder), 1)[:, None]


def one_expert(
    experts: nn.Module, hidden: Float[Tensor, "N H"], chosen: Tensor, weights: Float[Tensor, "N 1"]
) -> Float[Tensor, "N H"]:
    """Computes a single expert, faster than the kernels for many."""
    part: Any = experts
    gate, up = F.linear(hidden, part.gate_up_proj[0]).chunk(2, -1)
    return F.linear(part.act_fn(gate) * up, part.down_proj[0]) * weights


ALL_EXPERTS_FUNCTIONS.register("one_expert", one_expert)


def export(
    world: MiniWorld, network: DiffusionGemmaForBlockDiffusion, folder: Path
) -> dict[str, float]:
    """Writes the model and then measures the files just written."""
    deepcopy(network).bfloat16().save_pretrained(folder)
    written, _ = load_model(folder, device=world.options.device)
    sampler = AcceptAndRenoise(num_steps=16)
    answer = masked_answer(written, sampler, block_length=CANVAS_LENGTH, cache=FreeCache())
    return accuracies(world, answer)


if __name__ == "__main__":
    main()

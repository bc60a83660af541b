"""The recipe of `mini-uniform`: its one forward does what the network does in two."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from dllm_decode.models.loading.find import find_model
from dllm_decode.training.examples import lay_out

RECIPES = Path(__file__).parents[4] / "examples" / "mini"


@pytest.fixture(scope="module")
def recipe() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPES))
        import train_mini_uniform

        yield train_mini_uniform


@pytest.fixture
def begun(recipe: Any) -> Any:
    """A network that begins as `mini-ar`, and a batch."""
    parser = argparse.ArgumentParser()
    recipe.world_arguments(parser)
    recipe.sizes(parser, num_layers=5)
    parser.set_defaults(equations=0.0, gen_lengths=[48], batch_size=6)
    options = parser.parse_args([])
    world = recipe.MiniWorld(options)
    network = recipe.new_network(options, world.tokenizer)
    source = LlamaForCausalLM.from_pretrained(find_model("mini-ar"), dtype=torch.float32)
    recipe.start_from(network, source, world)
    batch = lay_out(world.kinds()[0].pairs("", 0), 48, 0, start=40)
    return network, batch


def test_one_forward_does_what_encoder_and_decoder_do_one_by_one(recipe: Any, begun: Any) -> None:
    network, batch = begun
    objective = recipe.UniformStateLoss(network.model.decoder, 40, 0.5)
    generator = torch.Generator().manual_seed(0)
    answers = batch.tokens[:, batch.start :]
    canvases, belief = objective.corrupted(answers, generator), torch.randn(3, 48, 432)
    with torch.no_grad():
        _, found = objective.logits(batch, canvases, belief)
        for row, (tokens, pads) in enumerate(zip(batch.tokens, batch.pads.tolist(), strict=True)):
            for start in range(0, 48, 8):
                context = tokens[None, pads : batch.start + start]
                canvas = slice(start, start + 8)
                expected = network(
                    input_ids=context,
                    decoder_input_ids=canvases[row, None, canvas],
                    self_conditioning_logits=belief[row, None, canvas] if row < 3 else None,
                )
                torch.testing.assert_close(
                    found[row, None, canvas], expected.logits, atol=1e-4, rtol=0.0
                )


def test_noise_and_a_step_of_the_sampler_keep_what_they_should(recipe: Any, begun: Any) -> None:
    network, batch = begun
    objective = recipe.UniformStateLoss(network.model.decoder, 40, 0.5)
    generator = torch.Generator().manual_seed(0)
    answers = batch.tokens[:, batch.start :].repeat(50, 1)
    kept = (objective.corrupted(answers, generator) == answers).float().unflatten(1, (6, 8))
    # Uniform on [0, 1], and a fifth of the canvases have no token left.
    assert kept.mean() == pytest.approx(0.4, abs=0.03)
    assert (kept.mean(-1) < 0.01).float().mean() > 0.2
    sure = torch.nn.functional.one_hot(answers, 432).float() * 40
    sure[:, 5] = 0.0
    found = objective.next_canvases(sure, generator)
    # The first one that is not sure is still accepted, as entropies before it sum to nothing.
    assert (found != answers).sum(-1).max() <= 1
    sure[:, 4:20] = 0.0
    found = objective.next_canvases(sure, generator)
    assert torch.equal(found[:, 20:], answers[:, 20:])
    assert (found[:, 4:20] != answers[:, 4:20]).float().mean() > 0.95


def test_a_step_lowers_the_loss(recipe: Any, begun: Any) -> None:
    network, batch = begun
    objective = recipe.UniformStateLoss(network.model.decoder.train(), 40, 0.5)
    optimiser = torch.optim.AdamW(network.model.decoder.parameters(), lr=0.003)
    losses = []
    for _ in range(4):
        loss = objective.loss(batch, torch.Generator().manual_seed(1))
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.9 * losses[0]

"""Toy models for verified decoding: drafts that are partly right, and tiny causal targets."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from toys import HashModel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dllm_decode import CausalTarget
from dllm_decode.models.base import ForwardInputs
from samplers.logits.noise import mix, position_keys, uniform
from samplers.logits.statistics import draw


@dataclass
class DriftingModel(HashModel):
    """Logits of which a part, `drift`, follows the canvas, and the rest the position alone.

    So what the logits of one state say about a later one is right now and then, as with a real
    model; a plain hash makes every draft wrong.
    """

    drift: float = 0.35

    def predict(self, inputs: ForwardInputs) -> Tensor:
        drifting = super().predict(inputs)
        positions = inputs.positions.gather(1, inputs.wanted)
        ids = torch.arange(self.vocab_size)
        steady = self.peak * uniform(mix(mix(positions + 7)[..., None] ^ mix(ids + 5000)))
        return (1.0 - self.drift) * steady + self.drift * drifting


@cache
def tiny_llama(vocab_size: int = 24, seed: int = 0, scale: float = 4.0) -> PreTrainedModel:
    """A random causal model in float64, peaked and varied."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=vocab_size - 2,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(scale)
    return model


def tiny_target(vocab_size: int = 24, seed: int = 0, scale: float = 4.0) -> CausalTarget:
    return CausalTarget(tiny_llama(vocab_size, seed, scale), name="tiny llama")


def logits_of(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Predictions of the token behind each of these, from scratch."""
    logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def written_alone(
    model: PreTrainedModel,
    prompt: list[int],
    given: list[int],
    *,
    gen_length: int,
    stops: tuple[int, ...],
    banned: tuple[int, ...] = (),
    temperature: float = 0.0,
    key: Tensor | None = None,
    ends: bool = True,
) -> list[int]:
    """The target's own answer behind given tokens, one token and one whole forward at a time.

    Args:
        model: The target.
        prompt: What it reads.
        given: The beginning of its answer.
        gen_length: Length of the answer.
        stops: Tokens that end it; the first fills up what is left.
        banned: Tokens that are never written.
        temperature: At which tokens are drawn.
        key: The row's noise, where the temperature is not 0.
        ends: Whether `stops` end it.
    """
    answer = list(given)
    while len(answer) < gen_length and not (ends and answer and answer[-1] in stops):
        logits = logits_of(model, [*prompt, *answer])[-1].clone()
        logits[list(banned)] = -torch.inf
        if key is None:
            answer.append(int(logits.argmax()))
        else:
            zero, place = torch.zeros(1, dtype=torch.long), torch.tensor([[len(answer)]])
            here = position_keys(key, zero, place)
            answer.append(int(draw(logits[None, None], temperature, here)))
    return answer + [stops[0]] * (gen_length - len(answer))


def greedy(
    model: PreTrainedModel,
    prompt: list[int],
    *,
    gen_length: int,
    stops: tuple[int, ...],
    banned: tuple[int, ...] = (),
) -> list[int]:
    """The target's own greedy answer."""
    return written_alone(model, prompt, [], gen_length=gen_length, stops=stops, banned=banned)

"""Toy models in float64: pure functions of the canvas, drafts that are partly right, tiny
causal targets and what these write alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dllm_decode import Canvas, CausalTarget, DecodeConfig, Draft
from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import Row
from dllm_decode.verify.drafts import DraftStart
from samplers.logits.noise import mix, position_keys, uniform
from samplers.logits.statistics import draw


@dataclass
class HashModel:
    """Logits keyed by everything a row sees: peaked, varied, never tied, alike in any batch.

    Changing one visible token changes all logits, so a wrong column, a leaking pad or a stale
    answer shows at once. It has no keys and values, hence no cache.
    """

    vocab_size: int = 24
    mask_id: int = 23
    eos_ids: tuple[int, ...] = (22,)
    banned_ids: tuple[int, ...] = ()
    logit_shift: int = 0
    causal_block_length: int = 0
    max_length: int | None = None
    peak: float = 6.0
    name: str = "hash model"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def predict(self, inputs: ForwardInputs) -> Tensor:
        tokens, positions = inputs.tokens, inputs.positions
        seen = mix(mix(positions + 1) ^ tokens)[:, None].expand(-1, tokens.shape[1], -1)
        if inputs.attend is not None:
            seen = seen.masked_fill(~inputs.attend.expand_as(seen), 0)
        keys = mix(seen.sum(-1) ^ mix(positions))
        keys = keys.gather(1, inputs.wanted)
        ids = torch.arange(self.vocab_size)
        return self.peak * uniform(mix(keys[..., None] ^ mix(ids + 1000)))

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        raise ValueError("The hash model has no keys and values.")

    def logits_of(self, canvas: Tensor) -> Tensor:
        """Scores a whole canvas without the engine; row p predicts column p whatever the shift."""
        columns = torch.arange(canvas.shape[1])[None].expand(len(canvas), -1)
        logits = self.predict(ForwardInputs(tokens=canvas, positions=columns, wanted=columns))
        if self.logit_shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        return logits


def never(inputs: ForwardInputs) -> Tensor:
    """Takes the place of `predict` where no forward may be run."""
    raise AssertionError("a forward was run")


@dataclass
class DriftingModel(HashModel):
    """Logits of which a part, `drift`, follows the canvas, and the rest the position alone.

    The logits of one state are sometimes right about a later state, as with a real model; a plain
    hash makes every draft wrong.
    """

    drift: float = 0.35

    def predict(self, inputs: ForwardInputs) -> Tensor:
        drifting = super().predict(inputs)
        positions = inputs.positions.gather(1, inputs.wanted)
        ids = torch.arange(self.vocab_size)
        steady = self.peak * uniform(mix(mix(positions + 7)[..., None] ^ mix(ids + 5000)))
        return (1.0 - self.drift) * steady + self.drift * drifting


@dataclass
class Knowing(DriftingModel):
    """Predicts the tokens of known answers, except at one position in `wrong_every`."""

    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    wrong_every: int = 4

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = super().predict(inputs)
        for row, tokens in enumerate(inputs.tokens.tolist() if self.answers else ()):
            positions = inputs.positions[row].tolist()
            first = max(column for column, place in enumerate(positions) if place == 0)
            prompt = next(
                (key for key in self.answers if (*tokens[first:],)[: len(key)] == key), None
            )
            if prompt is None:
                continue
            answer = self.answers[prompt]
            for place, column in enumerate(inputs.wanted[row].tolist()):
                # A shifted model predicts the next column.
                at = column + self.logit_shift - first - len(prompt)
                if 0 <= at < len(answer) and (at * 7 + sum(prompt)) % self.wrong_every:
                    logits[row, place, answer[at]] += 3.0 * self.peak
        return logits


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
    """Returns logits of the token after each of the given tokens, computed without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def draft_start_of(
    texts: list[list[int]],
    *,
    gen_length: int = 9,
    eos_ids: tuple[int, ...] = (98,),
    memory: Tensor | None = None,
) -> DraftStart:
    """Returns where drafts start after some texts, at temperature 0; [MASK] is 99."""
    config = DecodeConfig(gen_length=gen_length)
    rows = [Row.of(Request(0, text, config), 1, mask_id=99) for text in texts]
    width = max(map(len, texts)) + gen_length
    canvas = Canvas.of(rows, width=width, mask_id=99, eos_ids=eos_ids)
    first = torch.tensor([len(text) for text in texts])
    return DraftStart(canvas, first, first, 0.0, memory=memory)


def paths_of(draft: Draft, row: int = 0) -> list[list[int]]:
    """Returns the tokens on the path to each node of a tree."""
    assert draft.parents is not None
    paths: list[list[int]] = []
    nodes = zip(draft.tokens[row].tolist(), draft.parents[row].tolist(), strict=True)
    for token, parent in list(nodes)[: int(draft.counts[row])]:
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
    return paths


def written_alone(
    model: PreTrainedModel,
    prompt: list[int],
    given: Sequence[int] = (),
    *,
    gen_length: int,
    stops: tuple[int, ...],
    banned: tuple[int, ...] = (),
    temperature: float = 0.0,
    key: Tensor | None = None,
    ends: bool = True,
) -> list[int]:
    """Writes a target's answer after given tokens, one token and one whole forward at a time.

    The first of `stops` fills up the rest of an answer; with `ends`, any of them ends an answer.
    Tokens are drawn by `key`, the row's noise; without a key the likeliest tokens are taken.
    """
    answer = list(given)
    while len(answer) < gen_length and not (ends and answer and answer[-1] in stops):
        logits = logits_of(model, [*prompt, *answer])[-1].clone()
        logits[list(banned)] = -torch.inf
        if key is None:
            answer.append(int(logits.argmax()))
        else:
            zero, place = torch.zeros(1, dtype=torch.long), torch.tensor([[len(answer)]])
            position_key = position_keys(key, zero, place)
            answer.append(int(draw(logits[None, None], temperature, position_key)))
    return answer + [stops[0]] * (gen_length - len(answer))


def answers_of(
    target: CausalTarget, prompts: list[list[int]], gen_length: int, banned: tuple[int, ...] = (23,)
) -> list[list[int]]:
    """Writes a target's own greedy answers."""
    return [
        written_alone(
            target.network.model, prompt, gen_length=gen_length, stops=target.eos_ids, banned=banned
        )
        for prompt in prompts
    ]


def misfit(drawn: Tensor, probabilities: Tensor) -> float:
    """Computes chi-square of drawn numbers against a distribution; rare numbers are left out."""
    expected = len(drawn) * probabilities
    counts = drawn.bincount(minlength=len(probabilities))
    return float(((counts - expected) ** 2 / expected)[expected >= 1.0].sum())

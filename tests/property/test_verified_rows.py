"""Randomised rows under a target, against the target alone and against the rule of `Guided`.

Each case draws a model, prompts, templates, options and a verifier from its own number, so that a
failure is repeated by that number alone: `ar_case(number)` or `guided_case(number)`.
"""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import DriftingModel, logits_of, tiny_llama, written_alone
from transformers import PreTrainedModel

from dllm_decode import (
    ARVerify,
    CausalTarget,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    PathSearch,
    Sampled,
    Tree,
    decode,
)
from dllm_decode.models.base import ForwardInputs, MaskPredictor
from samplers import ConfidenceThreshold, FixedSchedule
from samplers.logits.noise import row_keys

Counts = Counter[str]


def chance_of(kind: str, number: int) -> random.Random:
    return random.Random(f"verified rows, {kind}, {number}")


@dataclass
class Knowing(DriftingModel):
    """Tells the next tokens of known answers, but for one position in `wrong_every`."""

    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    wrong_every: int = 4

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = super().predict(inputs)
        for row, tokens in enumerate(inputs.tokens.tolist()):
            positions = inputs.positions[row].tolist()
            first = max(column for column, place in enumerate(positions) if place == 0)
            prompt = next(
                (known for known in self.answers if (*tokens[first:],)[: len(known)] == known), None
            )
            if prompt is None:
                continue
            answer = self.answers[prompt]
            for place, column in enumerate(inputs.wanted[row].tolist()):
                # A shifted model says at a column what stands at the next.
                at = column + self.logit_shift - first - len(prompt)
                if 0 <= at < len(answer) and (at * 7 + sum(prompt)) % self.wrong_every:
                    logits[row, place, answer[at]] += 3.0 * self.peak
        return logits


def draw_prompts(chance: random.Random, num_ids: int) -> list[list[int]]:
    """Distinct prompts of several lengths, none the beginning of another."""
    return [
        [first, *(chance.randrange(num_ids) for _ in range(chance.randint(0, 8)))]
        for first in chance.sample(range(num_ids), chance.randint(2, 6))
    ]


def draw_model(chance: random.Random, *, vocab_size: int = 24) -> Any:
    eos_ids = chance.choice([(22,), (3, 9), (3, 7, 11, 15), (5,)])
    others = [token for token in range(20) if token not in eos_ids]
    return DriftingModel(
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        banned_ids=tuple(chance.sample(others, chance.choice([0, 0, 2]))),
        logit_shift=chance.randint(0, 1),
        causal_block_length=chance.choice([0, 0, 4]),
        peak=chance.choice([6.0, 9.0, 12.0]),
        drift=chance.choice([0.05, 0.1, 0.35, 0.8]),
    )


def draw_lengths(chance: random.Random, model: MaskPredictor) -> tuple[int, int]:
    """An answer's length, and that of its blocks."""
    gen_length, own = chance.randint(1, 18), model.causal_block_length
    if own:
        return gen_length, own * chance.randint(1, max(1, gen_length // own))
    return gen_length, chance.randint(1, gen_length)


# The target alone


def draw_drafting(chance: random.Random, answers: list[list[int]], temperature: float) -> Drafting:
    proxy = NGram(24).fit(answers)
    ways: list[Drafting] = [
        PathSearch(1, weight=1.0),
        PathSearch(),
        PathSearch(4, 0.95, 6, 0.4, proxy, "always", 0.0),
        PathSearch(2, num_forwards=3),
        Tree(1),
        Tree(7),
        Tree(16, proxy=proxy, proxy_weight=1.0, num_forwards=2),
        Tree(12, column_cost=0.02),
    ]
    # Drawn drafts follow the target's law, but not its sample.
    return chance.choice([*ways, Sampled()] if temperature == 0.0 else ways)


def ar_case(number: int) -> Counts:
    """Decodes a batch under a target; fails unless the answers are those of the target alone."""
    chance = chance_of("target", number)
    causal = tiny_llama(24, chance.randint(1, 4), chance.choice([2.0, 3.0, 4.0]))
    target = CausalTarget(causal, name="tiny llama")
    target.eos_ids = chance.choice([(22,), (13, 22), (3, 7, 11)])
    model = draw_model(chance)
    gen_length, block_length = draw_lengths(chance, model)
    temperature, seed = chance.choice([0.0, 0.0, 0.7, 1.0]), chance.randrange(2**40)
    stops, truncates = chance.random() < 0.7, chance.random() < 0.3
    prompts = draw_prompts(chance, 22)
    # An EOS that is given ends the answer only where rows stop.
    letters = [token for token in range(22) if token not in target.eos_ids]
    templates: list[list[int]] = [[] for _ in prompts]
    if chance.random() < 0.5:
        templates = [
            chance.choices(letters, k=chance.choice([0, 1, block_length, gen_length]))[:gen_length]
            for _ in prompts
        ]
    if stops and chance.random() < 0.2:
        templates = [[*given[:-1], target.eos_ids[-1]] if given else [] for given in templates]
    keys = row_keys(seed, torch.arange(len(prompts)))
    banned_ids = tuple(chance.sample(letters, chance.choice([0, 0, 3])))
    answers = [
        written_alone(
            causal, prompt, given, gen_length=gen_length, stops=target.eos_ids,
            banned=(model.mask_id, *model.banned_ids, *banned_ids), temperature=temperature,
            key=keys[row : row + 1] if temperature else None, ends=stops or truncates,
        )
        for row, (prompt, given) in enumerate(zip(prompts, templates, strict=True))
    ]  # fmt: skip
    known = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
    model = Knowing(**vars(model), answers=known, wrong_every=chance.choice([1, 2, 4, 9]))
    drafting = draw_drafting(chance, answers, temperature)
    shortest = chance.randint(1, 6)
    lengths = DraftLength(shortest, shortest + chance.randint(0, 12), growth=chance.randint(0, 5))
    verifier = ARVerify(target, lengths, drafting)
    sampler = chance.choice([ConfidenceThreshold(0.2), FixedSchedule(2)])
    options: dict[str, Any] = {
        "gen_length": gen_length, "block_length": block_length, "temperature": temperature,
        "seed": seed, "stop_at_eos": stops, "truncate_at_eos": truncates,
        "templates": templates, "banned_ids": banned_ids,
    }  # fmt: skip
    out = decode(model, prompts, sampler, verifier=verifier, **options)
    what = f"target case {number}: {drafting!r}, {lengths!r}, {target.eos_ids}, {options}"
    assert out.tokens.tolist() == answers, what
    assert torch.equal(out.nfe > 0, out.target_nfe > 0), what
    drafted, accepted = int(out.drafted.sum()), int(out.accepted.sum())
    return Counter({
        "rows": len(prompts),
        "rows with a template": sum(map(bool, templates)),
        "rows with a tree": len(prompts) * isinstance(drafting, Tree),
        "rows with noise": len(prompts) * (temperature > 0),
        "rows truncated": sum(
            truncates and not stops and any(token in target.eos_ids for token in answer[:-1])
            for answer in answers
        ),
        "drafts accepted": accepted,
        "drafts rejected": drafted - accepted,
        "rows without a forward": int((out.nfe == 0).sum()),
    })  # fmt: skip


# Guided decoding


def guided_alone(
    causal: PreTrainedModel, model: Any, prompt: list[int], length: int, guided: Guided
) -> tuple[list[int], int]:
    """The rule in words: one row, everything from scratch; also counts rounds."""
    answer: list[int] = []
    rounds, stops, banned = 0, model.eos_ids, [model.mask_id, *model.banned_ids]
    while len(answer) < length and not any(token in stops for token in answer):
        canvas = [*prompt, *answer] + [model.mask_id] * (length - len(answer))
        logits = model.logits_of(torch.tensor([canvas]))[0, len(prompt) + len(answer) :]
        logits[:, banned] = -torch.inf
        proposal = logits.argmax(-1).tolist()[: guided.num_proposals]
        judged = logits_of(causal, [*prompt, *answer, *proposal])[len(prompt) + len(answer) - 1 :]
        judged[:, banned] = -torch.inf
        kept = 0
        for token, law in zip(proposal, judged.softmax(-1), strict=False):
            rank = int((law > law[token]).sum())
            is_likely = law[token] >= guided.ratio * law.max() and law[token] > guided.threshold
            if rank >= guided.top_k or not is_likely:
                break
            kept += 1
        answer += proposal[: max(kept, 1)]
        ended = [at for at, token in enumerate(answer) if token in stops]
        answer = answer[: ended[0] + 1] if ended else answer
        rounds += 1
    return answer + [stops[0]] * (length - len(answer)), rounds


def guided_case(number: int) -> Counts:
    chance = chance_of("guided", number)
    causal = tiny_llama(24, chance.randint(1, 4), chance.choice([2.0, 3.0]))
    target = CausalTarget(causal, name="tiny llama")
    model = draw_model(chance)
    model.causal_block_length = 0
    target.eos_ids = model.eos_ids
    prompts, gen_length = draw_prompts(chance, 22), chance.randint(1, 14)
    guided = Guided(
        target, chance.choice([1, 3, 32]), chance.choice([1, 6, 24]), chance.choice([0.0, 0.1]),
        chance.choice([0.0, 0.02]),
    )  # fmt: skip
    expected = [guided_alone(causal, model, prompt, gen_length, guided) for prompt in prompts]
    out = decode(
        model, prompts, FixedSchedule(1), verifier=guided, gen_length=gen_length,
        block_length=chance.randint(1, gen_length),
    )  # fmt: skip
    what = f"guided case {number}: {guided!r}, {model}"
    assert out.tokens.tolist() == [answer for answer, _ in expected], what
    assert out.nfe.tolist() == [rounds for _, rounds in expected], what
    drafted, accepted = int(out.drafted.sum()), int(out.accepted.sum())
    return Counter({
        "rows": len(prompts),
        "drafts accepted": accepted,
        "drafts rejected": drafted - accepted,
    })  # fmt: skip


CASES = {"target": ar_case, "guided": guided_case}
HAPPENS = {
    "target": {"drafts accepted", "drafts rejected", "rows with a tree", "rows with a template"},
    "guided": {"drafts accepted", "drafts rejected"},
}
RARE = {"target": {"rows truncated", "rows without a forward", "rows with noise"}, "guided": set()}


@pytest.mark.parametrize(
    ("kind", "num_rows", "least"),
    [
        ("target", 50, 1), ("guided", 15, 1),
        pytest.param("target", 2500, 50, marks=pytest.mark.slow),
        pytest.param("guided", 400, 50, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_under_a_target_are_those_of_the_rule(kind: str, num_rows: int, least: int) -> None:
    counts: Counts = Counter()
    for number in itertools.count():
        counts.update(CASES[kind](number))
        if counts["rows"] >= num_rows:
            break
    wanted = HAPPENS[kind] | (RARE[kind] if least > 1 else set())
    assert all(counts[event] >= least for event in wanted), counts

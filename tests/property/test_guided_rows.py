"""Random rows under `Guided` against its rule in words; rows under a target are fuzzed cases."""

import random
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from toys import DriftingModel, logits_of, tiny_llama
from transformers import PreTrainedModel

from dllm_decode import CausalTarget, Guided, decode
from samplers import FixedSchedule


class Answer(NamedTuple):
    """A row's answer, and what it cost."""

    tokens: list[int]
    nfe: int
    drafted: int
    accepted: int


def guided_alone(
    causal: PreTrainedModel, model: DriftingModel, prompt: list[int], length: int, guided: Guided
) -> Answer:
    """Follows the rule in words: one row, everything from scratch."""
    answer: list[int] = []
    rounds = drafted = accepted = 0
    stops, banned = model.eos_ids, [model.mask_id, *model.banned_ids]
    while len(answer) < length and not any(token in stops for token in answer):
        canvas = [*prompt, *answer] + [model.mask_id] * (length - len(answer))
        logits = model.logits_of(torch.tensor([canvas]))[0, len(prompt) + len(answer) :]
        logits[:, banned] = -torch.inf
        proposal = logits.argmax(-1).tolist()[: guided.num_proposals]
        judged = logits_of(causal, [*prompt, *answer, *proposal])[len(prompt) + len(answer) - 1 :]
        judged[:, banned] = -torch.inf
        num_kept = 0
        for token, law in zip(proposal, judged.softmax(-1), strict=False):
            rank = int((law > law[token]).sum())
            is_likely = law[token] >= guided.ratio * law.max() and law[token] > guided.threshold
            if rank >= guided.top_k or not is_likely:
                break
            num_kept += 1
            if token in stops:
                break
        answer += proposal[: max(num_kept, 1)]
        rounds, drafted, accepted = rounds + 1, drafted + len(proposal), accepted + num_kept
    return Answer(answer + [stops[0]] * (length - len(answer)), rounds, drafted, accepted)


def check(number: int) -> Counter[str]:
    """Draws a case from its number alone, and compares answers and rounds."""
    chance = random.Random(f"verified rows, guided, {number}")
    causal = tiny_llama(24, chance.randint(1, 4), chance.choice([2.0, 3.0]))
    target = CausalTarget(causal, name="tiny llama")
    target.eos_ids = eos_ids = chance.choice([(22,), (3, 9), (3, 7, 11, 15), (5,)])
    words = [token for token in range(20) if token not in eos_ids]
    model = DriftingModel(
        eos_ids=eos_ids, banned_ids=tuple(chance.sample(words, chance.choice([0, 0, 2]))),
        logit_shift=chance.randint(0, 1), peak=chance.choice([6.0, 9.0, 12.0]),
        drift=chance.choice([0.05, 0.1, 0.35, 0.8]),
    )  # fmt: skip
    prompts = [chance.choices(range(22), k=chance.randint(1, 9)) for _ in range(3)]
    gen_length = chance.randint(1, 14)
    guided = Guided(
        target, chance.choice([1, 3, 32]), chance.choice([1, 6, 24]), chance.choice([0.0, 0.1]),
        chance.choice([0.0, 0.02]),
    )  # fmt: skip
    out = decode(
        model, prompts, FixedSchedule(1), verifier=guided, gen_length=gen_length,
        block_length=chance.randint(1, gen_length),
    )  # fmt: skip
    case = f"case {number}: {guided!r}, {model}"
    for row, prompt in enumerate(prompts):
        costs = (int(part[row]) for part in (out.nfe, out.drafted, out.accepted))
        expected = guided_alone(causal, model, prompt, gen_length, guided)
        assert Answer(out.tokens[row].tolist(), *costs) == expected, case
    accepted = int(out.accepted.sum())
    return Counter(accepted=accepted, rejected=int(out.drafted.sum()) - accepted)


@pytest.mark.parametrize("num_cases", [8, pytest.param(130, marks=pytest.mark.slow)])
def test_rows_are_those_of_the_rule(num_cases: int) -> None:
    counts: Counter[str] = Counter()
    for number in range(num_cases):
        counts.update(check(number))
    assert min(counts["accepted"], counts["rejected"]) >= num_cases // 3

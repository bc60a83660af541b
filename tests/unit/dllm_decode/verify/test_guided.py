from typing import Any

import pytest
import torch
from toys import DriftingModel, HashModel, logits_of, tiny_llama, tiny_target

from dllm_decode import Guided, StepEvent, decode
from samplers import FixedSchedule, Prophet

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLER = FixedSchedule(4)
OPTIONS: Any = {"gen_length": 10, "block_length": 5}


def by_hand(prompt: list[int], length: int, model: Any, guided: Guided) -> tuple[list[int], int]:
    """The rule as the paper's pseudo-code has it: one row, everything from scratch."""
    answer: list[int] = []
    rounds = 0
    while len(answer) < length and 22 not in answer:
        canvas = [*prompt, *answer] + [model.mask_id] * (length - len(answer))
        logits = model.logits_of(torch.tensor([canvas]))[0, len(prompt) + len(answer) :]
        logits[:, model.mask_id] = -torch.inf
        proposal = logits.argmax(-1).tolist()[: guided.num_proposals]
        judged = logits_of(tiny_llama(), [*prompt, *answer, *proposal])
        judged = judged[len(prompt) + len(answer) - 1 :]
        judged[:, model.mask_id] = -torch.inf
        kept = 0
        for token, row in zip(proposal, judged.softmax(-1), strict=False):
            rank = int((row > row[token]).sum())
            likely = row[token] >= guided.ratio * row.max() and row[token] > guided.threshold
            if not (rank < guided.top_k and likely):
                break
            kept += 1
        kept = max(kept, 1)
        answer += proposal[:kept]
        answer = answer[: answer.index(22) + 1] if 22 in answer else answer
        rounds += 1
    return answer + [22] * (length - len(answer)), rounds


@pytest.mark.parametrize(
    "rule",
    [{}, {"top_k": 6}, {"top_k": 24, "ratio": 0.3}, {"top_k": 24, "threshold": 0.02},
     {"top_k": 9, "num_proposals": 3}],
    ids=repr,
)  # fmt: skip
def test_proposals_are_kept_as_far_as_the_target_finds_them_plausible(rule: Any) -> None:
    guided, sizes = Guided(tiny_target(), **rule), set()

    def count(event: StepEvent) -> None:
        sizes.update((event.before.masked.sum(-1) - event.after.masked.sum(-1)).tolist())

    for eos_ids in ((22,),):
        model = DriftingModel(eos_ids=eos_ids)
        out = decode(model, PROMPTS, SAMPLER, verifier=guided, observers=[count], **OPTIONS)
        for row, prompt in enumerate(PROMPTS):
            answer, rounds = by_hand(prompt, 10, model, guided)
            assert out.tokens[row].tolist() == answer
            assert out.nfe[row] == out.target_nfe[row] == rounds
    if rule:
        assert len(sizes) > 1, "nothing but single tokens was kept"


def test_without_approval_it_is_one_token_a_forward_from_the_left() -> None:
    model = HashModel()
    out = decode(
        model, PROMPTS, SAMPLER, verifier=Guided(tiny_target(), threshold=0.999999), **OPTIONS
    )
    single = decode(model, PROMPTS, SAMPLER, gen_length=10, block_length=1)
    assert torch.equal(out.tokens, single.tokens)
    assert torch.equal(out.nfe, single.nfe)


def test_with_full_approval_it_is_one_forward() -> None:
    model = HashModel(eos_ids=(22,))
    guided = Guided(tiny_target(), top_k=24)
    out = decode(model, PROMPTS, SAMPLER, verifier=guided, stop_at_eos=False, **OPTIONS)
    once = decode(
        model, PROMPTS, FixedSchedule(1), stop_at_eos=False, gen_length=10, block_length=10
    )
    for row in range(3):
        ends = [*(place for place, token in enumerate(once.tokens[row].tolist()) if token == 22), 9]
        assert out.tokens[row, : ends[0] + 1].tolist() == once.tokens[row, : ends[0] + 1].tolist()
    assert (out.nfe <= 1 + (once.tokens == 22).sum(-1)).all()


def test_a_sampler_that_would_only_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="lets the sampler decide every step, got Guided"):
        decode(HashModel(), [[1]], Prophet(SAMPLER), verifier=Guided(tiny_target()), **OPTIONS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_proposals": 0}, "num_proposals must be a whole number, at least 1, got 0"),
        ({"top_k": 0}, "top_k must be a whole number, at least 1, got 0"),
        ({"ratio": 1.5}, r"ratio must be a share in \[0, 1\], got 1.5"),
        ({"threshold": 1.0}, r"threshold must be below 1, .*, got 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Guided(tiny_target(), **options)

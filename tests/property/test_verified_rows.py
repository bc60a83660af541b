"""Random rows under a target, against the target alone and against the rule of `Guided`.

Each case draws a model, prompts, templates, options and a verifier from its own number, so that a
failure is repeated by that number alone: `ar_case(number)` or `guided_case(number)`.
"""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch
from toys import DriftingModel, Knowing, logits_of, tiny_llama, written_alone
from transformers import PreTrainedModel

from dllm_decode import (
    ARVerify,
    CausalTarget,
    DecodeOutput,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    PathSearch,
    Sampled,
    StepEvent,
    Tree,
    decode,
    decode_many,
)
from dllm_decode.models.base import MaskPredictor
from samplers import ConfidenceThreshold, EntropyBound, FixedSchedule, Klass
from samplers.logits.noise import row_keys

Counts = Counter[str]
SAMPLERS = (
    ConfidenceThreshold(0.2), FixedSchedule(2), FixedSchedule(2, "random"), Klass(0.4, 0.05),
    EntropyBound(0.5),
)  # fmt: skip
COSTS = ("nfe", "target_nfe", "drafted", "accepted")


def chance_of(kind: str, number: int) -> random.Random:
    return random.Random(f"verified rows, {kind}, {number}")


def draw_prompts(chance: random.Random, num_ids: int) -> list[list[int]]:
    """Draws distinct prompts of several lengths, none of which is the beginning of another."""
    return [
        [first, *(chance.randrange(num_ids) for _ in range(chance.randint(0, 8)))]
        for first in chance.sample(range(num_ids), chance.randint(2, 6))
    ]


def draw_model(chance: random.Random) -> Any:
    eos_ids = chance.choice([(22,), (3, 9), (3, 7, 11, 15), (5,)])
    others = [token for token in range(20) if token not in eos_ids]
    return DriftingModel(
        eos_ids=eos_ids,
        banned_ids=tuple(chance.sample(others, chance.choice([0, 0, 2]))),
        logit_shift=chance.randint(0, 1),
        causal_block_length=chance.choice([0, 0, 4]),
        peak=chance.choice([6.0, 9.0, 12.0]),
        drift=chance.choice([0.05, 0.1, 0.35, 0.8]),
    )


def draw_lengths(chance: random.Random, model: MaskPredictor) -> tuple[int, int]:
    """Draws an answer's length and that of its blocks."""
    gen_length, own = chance.randint(1, 18), model.causal_block_length
    if own:
        return gen_length, own * chance.randint(1, max(1, gen_length // own))
    return gen_length, chance.randint(1, gen_length)


def draw_templates(
    chance: random.Random, letters: list[int], eos: int, *, num: int, lengths: tuple[int, int],
    stops: bool,
) -> list[list[int]]:  # fmt: skip
    """Draws beginnings of answers; a given EOS ends an answer only where rows stop."""
    gen_length, block_length = lengths
    if chance.random() < 0.5:
        return [[]] * num
    sizes = [0, 1, block_length, gen_length]
    given = [chance.choices(letters, k=chance.choice(sizes))[:gen_length] for _ in range(num)]
    if stops and chance.random() < 0.4:
        return [[*row[:-1], eos] if row else [] for row in given]
    return given


def draw_drafting(chance: random.Random, answers: list[list[int]]) -> Drafting:
    proxy = NGram(24).fit(answers)
    return chance.choice(
        [
            PathSearch(1, weight=1.0), PathSearch(), PathSearch(2, num_forwards=3), Sampled(),
            PathSearch(4, 0.95, 6, 0.4, proxy, "always", 0.0),
            PathSearch(1, proxy=proxy, num_forwards=8), Tree(1), Tree(7),
            Tree(16, proxy=proxy, proxy_weight=1.0, num_forwards=2), Tree(12, column_cost=0.02),
        ]
    )  # fmt: skip


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
    letters = [token for token in range(22) if token not in target.eos_ids]
    templates = draw_templates(
        chance, letters, target.eos_ids[-1], num=len(prompts), lengths=(gen_length, block_length),
        stops=stops,
    )  # fmt: skip
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
    shortest, drafting = chance.randint(1, 6), draw_drafting(chance, answers)
    lengths = DraftLength(shortest, shortest + chance.randint(0, 12), growth=chance.randint(0, 5))
    options: dict[str, Any] = {
        "sampler": chance.choice(SAMPLERS), "verifier": ARVerify(target, lengths, drafting),
        "gen_length": gen_length, "block_length": block_length, "temperature": temperature,
        "seed": seed, "stop_at_eos": stops, "truncate_at_eos": truncates,
        "templates": templates, "banned_ids": banned_ids,
    }  # fmt: skip
    out = decode(model, prompts, **options)
    case = f"target case {number}: {drafting!r}, {lengths!r}, {target.eos_ids}, {options}"
    # Drawn drafts follow the target's law, but not its sample.
    if not temperature or not isinstance(drafting, Sampled):
        assert out.tokens.tolist() == answers, case
    assert out.eos_ids == target.eos_ids
    assert (out.target_nfe <= out.nfe).all(), case
    num_looks = 1 if isinstance(drafting, Sampled) else drafting.num_forwards
    assert (out.nfe <= num_looks * out.target_nfe).all(), case
    events = joined(model, prompts, out, chance.randint(1, len(prompts) - 1), case, options)
    drafted, accepted = int(out.drafted.sum()), int(out.accepted.sum())
    return events + Counter({
        "rows": len(prompts),
        "rows with a template": sum(map(bool, templates)),
        "rows with a tree": len(prompts) * isinstance(drafting, Tree),
        "rows with noise": len(prompts) * (temperature > 0),
        "rows truncated": sum(
            truncates and not stops and any(token in target.eos_ids for token in answer[:-1])
            for answer in answers
        ),
        "rows ended": sum(
            stops and any(token in target.eos_ids for token in answer[:-1]) for answer in answers
        ),
        "drafts accepted": accepted,
        "drafts rejected": drafted - accepted,
        "drafted again": int((out.nfe > out.target_nfe).sum()),
        "rows without a forward": int((out.nfe == 0).sum()),
    })  # fmt: skip


def joined(
    model: Any, prompts: list[list[int]], out: DecodeOutput, num_rows: int, case: str,
    options: dict[str, Any],
) -> Counts:  # fmt: skip
    """Decodes the prompts in fewer rows; fails unless answers and costs are those of the batch."""
    known, events = set[int](), Counter[str]()

    def watch(event: StepEvent) -> None:
        fresh = set(event.requests.tolist()) - known
        events["rows joined"] += len(fresh) if known else 0
        known.update(fresh)
        blocks = {row.opening.start - row.first for row in event.rows}
        events["rows at different blocks"] += len(blocks) > 1

    many = list(decode_many(model, prompts, num_rows=num_rows, observers=[watch], **options))
    for row, one in enumerate(many):
        assert torch.equal(one.tokens[0], out.tokens[row]), case
        for name in COSTS:
            assert vars(one)[name][0] == vars(out)[name][row], (name, case)
    return events


# Guided decoding


def guided_alone(
    causal: PreTrainedModel, model: Any, prompt: list[int], length: int, guided: Guided
) -> tuple[list[int], int]:
    """Follows the rule in words: one row, everything from scratch; also counts rounds."""
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
    case = f"guided case {number}: {guided!r}, {model}"
    assert out.tokens.tolist() == [answer for answer, _ in expected], case
    assert out.nfe.tolist() == [rounds for _, rounds in expected], case
    drafted, accepted = int(out.drafted.sum()), int(out.accepted.sum())
    return Counter({
        "rows": len(prompts), "drafts accepted": accepted, "drafts rejected": drafted - accepted,
    })  # fmt: skip


CASES = {"target": ar_case, "guided": guided_case}
HAPPENS = {
    "target": {
        "drafts accepted", "drafts rejected", "rows with a tree", "rows with a template",
        "rows truncated", "rows ended", "rows without a forward", "rows with noise", "rows joined",
        "rows at different blocks", "drafted again",
    },
    "guided": {"drafts accepted", "drafts rejected"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "first", "num_rows", "least"),
    [
        # Few cases in which everything happens.
        ("target", 20, 36, 1), ("guided", 0, 15, 1),
        pytest.param("target", 0, 2500, 50, marks=pytest.mark.slow),
        pytest.param("guided", 0, 400, 50, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_under_a_target_are_those_of_the_rule(
    kind: str, first: int, num_rows: int, least: int
) -> None:
    counts: Counts = Counter()
    for number in itertools.count(first):
        counts.update(CASES[kind](number))
        if counts["rows"] >= num_rows:
            break
    assert all(counts[event] >= least for event in HAPPENS[kind]), counts

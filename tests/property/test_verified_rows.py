"""Ten thousand randomised rows: verified decoding against plain decoding and the target alone.

Each case draws a model, prompts, templates, options and a verifier from its own number, so that a
failure is repeated by that number alone: `self_case(number)` and its siblings.
"""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from drafted import DriftingModel, logits_of, tiny_llama
from samplers_under_test import VERIFIABLE
from spied import FAMILIES, tiny
from torch import Tensor
from transformers import PreTrainedModel

from dllm_decode import (
    ARVerify,
    CachePolicy,
    CausalTarget,
    DelayedCache,
    Drafting,
    DraftLength,
    DualCache,
    FreeCache,
    Guided,
    NGram,
    NoCache,
    NoVerifier,
    PathSearch,
    PrefixCache,
    Sampled,
    SelfVerify,
    SettledCache,
    Trace,
    Tree,
    Verifier,
    decode,
)
from dllm_decode.compatibility import refusal_of
from dllm_decode.models.base import ForwardInputs, MaskPredictor
from samplers import ConfidenceThreshold, FixedSchedule, Sampler
from samplers.logits.noise import position_keys, row_keys
from samplers.logits.statistics import draw

CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    PrefixCache(refresh_every=3),
    DualCache(),
    DualCache(before=2, after=3),
    DualCache(refresh_every=3),
    FreeCache("clean"),
    FreeCache("official"),
    DelayedCache(2),
    SettledCache(),
)
"""Those that the table refuses for a case are not drawn for it."""

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


def draw_options(chance: random.Random, model: MaskPredictor) -> dict[str, Any]:
    gen_length, block_length = draw_lengths(chance, model)
    options: dict[str, Any] = {
        "gen_length": gen_length,
        "block_length": block_length,
        "temperature": chance.choice([0.0, 0.0, 0.5, 1.0]),
        "seed": chance.randrange(-(2**63), 2**63),
        "stop_at_eos": chance.random() < 0.6,
        "truncate_at_eos": chance.random() < 0.3,
    }
    kind = chance.randrange(8)
    if kind == 0:
        options |= {"top_p": 0.8, "top_k": chance.choice([0, 3])}
    if kind == 1:
        options |= {"confidence_from": "tempered", "banned_ids": (1, 2)}
    return options


def templates_of(
    chance: random.Random, answers: list[list[int]], block_length: int, mask_id: int
) -> list[list[int]]:
    """Gives whole blocks here and single tokens there, and ends anywhere."""
    templates = []
    for answer in answers:
        given = list(answer)
        for start in range(0, len(given), block_length):
            kind = chance.randrange(3)
            for position in range(start, min(start + block_length, len(given))):
                if kind == 0 or (kind == 1 and chance.random() < 0.6):
                    given[position] = mask_id
        templates.append(given[: chance.randint(0, len(given))])
    return templates


class History(NamedTuple):
    """All that a decode decided, and what it cost.

    Attributes:
        out: The answers.
        steps: When each position was committed.
        revisions: What was taken back, and when.
        confidences: Of the commits.
    """

    out: Any
    steps: list[list[int]]
    revisions: list[list[Any]]
    confidences: Tensor


def history(
    model: Any, prompts: Any, sampler: Sampler, verifier: Verifier, **options: Any
) -> History:
    trace = Trace()
    out = decode(model, prompts, sampler, verifier=verifier, observers=[trace], **options)
    rows = range(len(prompts))
    none = torch.full((options["gen_length"],), -1)
    return History(
        out,
        [trace.steps.get(row, none).tolist() for row in rows],
        [[one[:3] for one in trace.revisions.get(row, [])] for row in rows],
        torch.stack([trace.confidences.get(row, none.double()).double() for row in rows]),
    )


def blocks_skipped(
    template: list[int], gen_length: int, block_length: int, lead: int, mask_id: int
) -> int:
    """Counts whole blocks given between an open one before and an open one behind."""
    padded = [0] * lead + template + [mask_id] * (gen_length - len(template))
    open_blocks = [
        mask_id in padded[start : start + block_length]
        for start in range(0, len(padded), block_length)
    ]
    inside = list(itertools.dropwhile(lambda is_open: not is_open, open_blocks))
    while inside and not inside[-1]:
        inside.pop()
    return inside.count(False)


def was_truncated(row: list[int], steps: list[int], template: list[int], eos_ids: Any) -> bool:
    """Says whether a mask before an EOS was decoded later, and none behind it ever was."""
    ends = [at for at, token in enumerate(row) if token in eos_ids and steps[at] >= 0]
    if not ends:
        return False
    end = min(ends, key=lambda at: steps[at])
    behind = [steps[at] for at in range(end + 1, len(row)) if at >= len(template)]
    late = max(steps[:end], default=-1) > steps[end]
    return late and bool(behind) and max(behind) <= steps[end]


# Self-verification


def draw_self_verify(chance: random.Random) -> SelfVerify:
    return SelfVerify(
        chance.choice([1, 2, 3, 4, 4, 6]),
        chance.choice(["batch", "batch", "tree", "tree", "sequential"]),
        chance.choice(["block", "next", "next"]),
    )


def draw_plugins(
    chance: random.Random, model: MaskPredictor, verifier: Verifier, *, has_kv_cache: bool
) -> tuple[Sampler, CachePolicy]:
    """Draws until the table of what fits allows it."""
    while True:
        sampler = chance.choice(VERIFIABLE)
        cache = chance.choice(CACHES) if has_kv_cache else NoCache()
        if refusal_of(model, sampler, cache, verifier=verifier) is None:
            return sampler, cache


def self_case(number: int) -> Counts:
    """Decodes a batch twice; fails unless all is the same but the forwards."""
    chance = chance_of("self", number)
    has_kv_cache = chance.random() < 0.25
    model = tiny(chance.choice(FAMILIES)) if has_kv_cache else draw_model(chance)
    verifier = draw_self_verify(chance)
    sampler, cache = draw_plugins(chance, model, verifier, has_kv_cache=has_kv_cache)
    prompts = draw_prompts(chance, 22)
    options = draw_options(chance, model) | {"cache": cache}
    if isinstance(cache, NoCache) and chance.random() < 0.1:
        options["cfg_scale"] = 0.7
    templates: list[list[int]] = [[] for _ in prompts]
    if chance.random() < 0.6:
        free = decode(model, prompts, FixedSchedule(2), **options).tokens.tolist()
        templates = templates_of(chance, free, options["block_length"], model.mask_id)
        options["templates"] = templates
    what = f"self case {number}: {model.name}, {sampler!r}, {verifier!r}, {options}"
    plain = history(model, prompts, sampler, NoVerifier(), **options)
    found = history(model, prompts, sampler, verifier, **options)
    assert torch.equal(plain.out.tokens, found.out.tokens), what
    assert plain.steps == found.steps, what
    assert plain.revisions == found.revisions, what
    torch.testing.assert_close(
        plain.confidences, found.confidences, rtol=1e-6, atol=1e-9, equal_nan=True, msg=what
    )
    if verifier.evaluate != "sequential":
        assert (found.out.nfe <= plain.out.nfe).all(), what
        assert found.out.forwards <= plain.out.forwards, what
    align, block_length = model.causal_block_length or 1, options["block_length"]
    skipped = sum(
        blocks_skipped(given, options["gen_length"], block_length, len(p) % align, model.mask_id)
        for given, p in zip(templates, prompts, strict=True)
    )
    truncated = 0
    if options["truncate_at_eos"]:
        rows = zip(plain.out.tokens.tolist(), plain.steps, templates, strict=True)
        truncated = sum(was_truncated(*row, model.eos_ids) for row in rows)
    drafted, accepted = int(found.out.drafted.sum()), int(found.out.accepted.sum())
    return Counter({
        "rows": len(prompts),
        "rows with a cache": len(prompts) * (not isinstance(cache, NoCache)),
        "rows with a template": sum(map(bool, templates)),
        "rows with noise": len(prompts) * (options["temperature"] > 0),
        "drafts accepted": accepted,
        "drafts rejected": drafted - accepted,
        "forwards saved": int((plain.out.nfe - found.out.nfe).clamp(min=0).sum()),
        "blocks skipped": skipped,
        "rows truncated": truncated,
        "commits taken back": sum(map(len, plain.revisions)),
    })  # fmt: skip


# The target alone


def target_alone(
    model: PreTrainedModel,
    prompt: list[int],
    given: list[int],
    *,
    gen_length: int,
    stops: tuple[int, ...],
    ends: bool,
    banned: list[int],
    temperature: float,
    key: Tensor,
) -> list[int]:
    """One token and one whole forward at a time."""
    answer = list(given)
    while len(answer) < gen_length and not (ends and answer and answer[-1] in stops):
        logits = logits_of(model, [*prompt, *answer])[-1].clone()
        logits[banned] = -torch.inf
        if temperature == 0.0:
            answer.append(int(logits.argmax()))
        else:
            zero, place = torch.zeros(1, dtype=torch.long), torch.tensor([[len(answer)]])
            here = position_keys(key, zero, place)
            answer.append(int(draw(logits[None, None], temperature, here)))
    return answer + [stops[0]] * (gen_length - len(answer))


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
        target_alone(
            causal, prompt, given, gen_length=gen_length, stops=target.eos_ids,
            ends=stops or truncates, banned=[model.mask_id, *model.banned_ids, *banned_ids],
            temperature=temperature, key=keys[row : row + 1],
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


def cached_ar_case(number: int) -> Counts:
    """As `ar_case`, with the mask predictors of the families and their caches."""
    chance = chance_of("cached target", number)
    model = tiny(chance.choice(FAMILIES))
    causal = tiny_llama(model.vocab_size, 1, 4.0)
    target = CausalTarget(causal, name="tiny llama")
    gen_length, block_length = draw_lengths(chance, model)
    drafting = chance.choice([PathSearch(), Tree(9), PathSearch(2, num_forwards=2)])
    verifier = ARVerify(target, DraftLength(2, 6), drafting)
    sampler: Sampler = FixedSchedule(2)
    while True:
        cache = chance.choice(CACHES)
        if refusal_of(model, sampler, cache, verifier=verifier) is None:
            break
    prompts = draw_prompts(chance, 490)
    seed, temperature = chance.randrange(2**40), chance.choice([0.0, 0.6])
    templates = [[chance.randrange(490) for _ in range(chance.choice([0, 2]))] for _ in prompts]
    templates = [given[:gen_length] for given in templates]
    keys = row_keys(seed, torch.arange(len(prompts)))
    answers = [
        target_alone(
            causal, prompt, given, gen_length=gen_length, stops=target.eos_ids, ends=True,
            banned=[model.mask_id, *model.banned_ids], temperature=temperature,
            key=keys[row : row + 1],
        )
        for row, (prompt, given) in enumerate(zip(prompts, templates, strict=True))
    ]  # fmt: skip
    out = decode(
        model, prompts, sampler, cache=cache, verifier=verifier, gen_length=gen_length,
        block_length=block_length, temperature=temperature, seed=seed, templates=templates,
    )  # fmt: skip
    what = f"cached target case {number}: {model.name}, {cache!r}, {drafting!r}, {templates}"
    assert out.tokens.tolist() == answers, what
    return Counter({
        "rows": len(prompts),
        "rows with a cache": len(prompts) * (not isinstance(cache, NoCache)),
        "drafts rejected": int((out.drafted - out.accepted).sum()),
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


CASES = {
    "self": self_case, "target": ar_case, "cached target": cached_ar_case, "guided": guided_case,
}  # fmt: skip
EXPECTED = {
    "self": {
        "drafts accepted", "drafts rejected", "forwards saved", "blocks skipped",
        "rows with a template", "rows with noise",
    },
    "target": {"drafts accepted", "drafts rejected", "rows with a tree", "rows with a template"},
    "cached target": {"drafts rejected", "rows with a cache"},
    "guided": {"drafts accepted", "drafts rejected"},
}  # fmt: skip
"""What must have happened, else the law was not tried."""
RARE = {
    "self": {"rows truncated", "commits taken back", "rows with a cache"},
    "target": {"rows truncated", "rows without a forward", "rows with noise"},
}
"""What must have happened in many rows."""


def counts_of(kind: str, num_rows: int) -> Counts:
    counts: Counts = Counter()
    for number in itertools.count():
        counts.update(CASES[kind](number))
        if counts["rows"] >= num_rows:
            return counts
    raise AssertionError


@pytest.mark.parametrize(
    ("kind", "num_rows"), [("self", 120), ("target", 50), ("cached target", 15), ("guided", 15)]
)
def test_two_hundred_rows_are_those_of_plain_decoding(kind: str, num_rows: int) -> None:
    counts = counts_of(kind, num_rows)
    assert all(counts[event] > 0 for event in EXPECTED[kind]), counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [("self", 7000), ("target", 2500), ("cached target", 300), ("guided", 400)],
)
def test_ten_thousand_rows_are_those_of_plain_decoding(kind: str, num_rows: int) -> None:
    counts = counts_of(kind, num_rows)
    print(kind, dict(counts))
    wanted = EXPECTED[kind] | RARE.get(kind, set())
    assert all(counts[event] >= 50 for event in wanted), counts

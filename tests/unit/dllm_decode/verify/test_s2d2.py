import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fuzzed_cases import MASK, VOCAB_SIZE, model_of
from jaxtyping import Float
from torch import Tensor
from toys import HashModel

from dllm_decode import (
    S2D2,
    UCB,
    CachePolicy,
    DualCache,
    FreeCache,
    MinimumSpan,
    MultiBlock,
    NoCache,
    NoVerifier,
    PrefixCache,
    ScoreThreshold,
    State,
    StepEvent,
    decode,
    decode_many,
)
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.decoder import Decoder
from dllm_decode.forward import forward
from dllm_decode.models.base import ForwardInputs, MaskPredictor
from dllm_decode.verify import Router
from dllm_decode.verify.s2d2 import s2d2
from dllm_decode.verify.s2d2.routing import Rewards
from samplers import ConfidenceThreshold, JointThreshold, View
from samplers.base import Decision

FAMILIES = ("sdar", "llada2_moe", "fast_dllm_v2")
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def read_alone(model: MaskPredictor, tokens: list[int], start: int) -> Float[Tensor, " V"]:
    """Predicts the token after some tokens, each of which sees those up to itself from a start on.

    Before the start, each sees its own block and those before it.
    """
    read = tokens if model.logit_shift else [*tokens, model.mask_id]
    columns = torch.arange(len(read))
    blocks = columns // model.causal_block_length
    attend = torch.where(
        columns[:, None] < start, blocks[:, None] >= blocks, columns[:, None] >= columns
    )
    found = model.predict(
        ForwardInputs(
            tokens=torch.tensor([read]), positions=columns[None], wanted=columns[None, -1:],
            attend=attend[None],
        )
    )  # fmt: skip
    return found[0, 0]


@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_verification_reads_each_position_as_the_model_does_from_left_to_right(
    family: str, cache: CachePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, checked = model_of(family, 0, 2.0, 4, ()), 0
    read = s2d2._left_to_right

    def compared(
        decoder: Decoder, state: State, window: Any, drafted: Any, places: Tensor
    ) -> tuple[State, Tensor]:
        nonlocal checked
        state, logits = read(decoder, state, window, drafted, places)
        for n, row in enumerate(drafted.rows):
            start = state.rows[row].opening.block[0]
            for place, found in zip(places[n].tolist(), logits[n], strict=True):
                tokens = drafted.tokens[row, : start + place].tolist()
                expected = read_alone(model, tokens, start)
                finite = found.isfinite()
                torch.testing.assert_close(found[finite], expected[finite], rtol=1e-9, atol=1e-9)
                checked += 1
        return state, logits

    monkeypatch.setattr(s2d2, "_left_to_right", compared)
    decode(
        model, PROMPTS, ConfidenceThreshold(0.5), cache=cache, verifier=S2D2(MinimumSpan(2)),
        gen_length=10, stop_at_eos=False,
    )  # fmt: skip
    assert checked > 20


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("attend", ["blocks", "causal"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_exact_cache_gives_the_tokens_of_no_cache(family: str, attend: Any) -> None:
    model = model_of(family, 1, 2.0, 4, ())
    samplers = ConfidenceThreshold(0.4), JointThreshold(0.4, 0.2, 3)
    for sampler in samplers[: 1 + (family == "llada2_moe")]:
        outs = [
            decode(
                model, PROMPTS, sampler, cache=cache, verifier=S2D2(MinimumSpan(1), attend),
                gen_length=14, stop_at_eos=False,
            )
            for cache in (NoCache(), PrefixCache(), DualCache(), FreeCache())
        ]  # fmt: skip
        assert all(torch.equal(outs[0].tokens, out.tokens) for out in outs)
        assert outs[0].accepted.sum() > 0
        assert outs[0].drafted.sum() > outs[0].accepted.sum()


def chi_square(pairs: list[tuple[int, ...]], law: Tensor) -> tuple[float, int]:
    """Returns the statistic over all pairs that are expected 5 times or more, and its degrees."""
    expected = law.flatten() * len(pairs)
    index = torch.tensor(pairs)
    counts = torch.bincount(index[:, 0] * VOCAB_SIZE + index[:, 1], minlength=len(expected))
    often = expected >= 5
    terms = (counts - expected)[often] ** 2 / expected[often]
    return float(terms.sum()), int(often.sum()) - 1


@pytest.mark.parametrize("family", ["sdar", pytest.param("fast_dllm_v2", marks=pytest.mark.slow)])
def test_a_verified_run_follows_the_law_of_the_left_to_right_mode(family: str) -> None:
    model, prompt, number = model_of(family, 0, 1.0, 2, ()), [1, 2, 3, 4], 4000

    def law_after(tokens: list[int]) -> Tensor:
        logits = read_alone(model, tokens, len(prompt)).clone()
        logits[[MASK, *model.banned_ids]] = -torch.inf
        return logits.softmax(-1)

    law = law_after(prompt)[:, None] * torch.stack(
        [law_after([*prompt, token]) for token in range(VOCAB_SIZE)]
    )
    found = {}
    for verifier in (S2D2(MinimumSpan(1)), NoVerifier()):
        out = decode(
            model, [prompt] * number, ConfidenceThreshold(0.0), verifier=verifier, gen_length=2,
            temperature=1.0, stop_at_eos=False,
        )  # fmt: skip
        found[type(verifier)] = chi_square([tuple(row) for row in out.tokens.tolist()], law)
    statistic, degrees = found[S2D2]
    assert degrees > 20
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5
    statistic, degrees = found[NoVerifier]
    assert statistic > degrees + 50 * (2 * degrees) ** 0.5


def test_costs_count_the_forwards_of_verification() -> None:
    model = model_of("sdar", 0, 2.0, 4, ())
    options: Any = {"cache": FreeCache(), "gen_length": 8, "stop_at_eos": False}
    never = decode(
        model, [[1, 2, 3, 4]], ConfidenceThreshold(1.0), verifier=S2D2(MinimumSpan(5)), **options
    )
    plain = decode(model, [[1, 2, 3, 4]], ConfidenceThreshold(1.0), **options)
    assert torch.equal(never.tokens, plain.tokens)
    assert never.nfe.tolist() == plain.nfe.tolist() == [8]
    assert never.query_positions.tolist() == plain.query_positions.tolist()
    assert never.drafted.tolist() == [0]
    always = decode(
        model, [[1, 2, 3, 4]], ConfidenceThreshold(1.0), verifier=S2D2(MinimumSpan(1)), **options
    )
    rounds = always.nfe.item() // 2
    assert always.nfe.item() == 2 * rounds == always.forwards
    # The first forward of each block computes the columns before it too; verification two lines.
    assert always.query_positions.item() == 2 * 4 + rounds * (4 + 2 * 4)


def test_hysteresis_goes_on_until_the_lower_score_and_begins_anew_with_a_row() -> None:
    class Seen:
        eligible = masked = span = torch.ones(3, 2, dtype=torch.bool)
        vocab_size, dtype = 4, torch.float64
        entropy = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.0, 0.0]], dtype=torch.float64)

    view: Any = Seen()
    verified = torch.tensor([False, True, True])
    router = ScoreThreshold(1.0, -1.5)
    chosen, state = router.verifies(view, view.span, verified)
    assert chosen.tolist() == state.tolist() == [False, True, True]
    chosen, _ = ScoreThreshold(0.9, -0.5).verifies(view, view.span, verified)
    assert chosen.tolist() == [True, False, True]
    # A full block has nothing to verify.
    assert not router.verifies(view, ~view.span, verified)[0].any()


class PlainBandit:
    """The rule of UCB for one answer, with dictionaries and one number at a time."""

    def __init__(self, router: UCB, block_length: int) -> None:
        self.router, self.block_length, self.num_rounds = router, block_length, 0
        self.rewards: dict[tuple[Any, int], list[float]] = {}
        self.last: tuple[Any, int] = ((), 0)

    def decide(self, length: int, num_filled: int, entropies: list[float], vocab: int) -> bool:
        router, length = self.router, max(1, length)
        shares = (
            ((length - 1) / (self.block_length - 1), router.span_bins),
            (num_filled / self.block_length, router.progress_bins),
            (sum(entropies) / len(entropies) / math.log(vocab), router.entropy_bins),
        )
        context = tuple(min(int(share * number), number - 1) for share, number in shares)
        self.num_rounds += 1
        scores = []
        for action in (0, 1):
            seen = self.rewards.get((context, action), [])
            score = math.inf
            if seen:
                bonus = math.sqrt(math.log(self.num_rounds) / len(seen))
                score = sum(seen) / len(seen) + router.beta * bonus
            scores.append(score)
        self.last = context, int(scores[1] >= scores[0])
        return bool(self.last[1])

    def learn(self, num_filled: int) -> None:
        self.rewards.setdefault(self.last, []).append(num_filled / (1 + self.last[1]))


@dataclass(frozen=True)
class Compared(Router[Rewards]):
    """Compares each choice of UCB with the plain rule; an observer for the rewards too."""

    router: UCB
    plain: PlainBandit
    choices: list[bool] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)

    def init(self, view: View) -> Rewards:
        return self.router.init(view)

    def verifies(self, view: View, span: Tensor, state: Rewards) -> tuple[Tensor, Rewards]:
        chosen, state = self.router.verifies(view, span, state)
        masks = int((view.eligible & view.masked).sum())
        if masks:
            filled = self.opened.setdefault(int(view.start), masks) - masks
            entropies = view.entropy[span].tolist()
            expected = self.plain.decide(len(entropies), filled, entropies, view.vocab_size)
            assert chosen.tolist() == [expected]
            self.choices.append(expected)
        return chosen, state

    def __call__(self, event: StepEvent) -> None:
        (row,) = event.rows
        block = slice(row.opening.start, row.opening.stop)
        masks, left = (int(at.masked[0, block].sum()) for at in (event.before, event.after))
        if masks:
            self.plain.learn(masks - left)


@pytest.mark.parametrize("router", [UCB(), UCB(0.2, 3, 1, 4)], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bandit_decides_and_learns_as_its_rule_says(family: str, router: UCB) -> None:
    model, choices = model_of(family, 0, 2.0, 4, ()), []
    for sampler in (ConfidenceThreshold(0.4), JointThreshold(0.4, 0.2, 3)):
        for seed, prompt in enumerate(PROMPTS):
            compared = Compared(router, PlainBandit(router, 4))
            decode(
                model, [prompt], sampler, verifier=S2D2(compared), gen_length=40, temperature=0.8,
                stop_at_eos=False, seed=seed, observers=[compared],
            )  # fmt: skip
            choices += compared.choices
    assert 0.1 < sum(choices) / len(choices) < 0.9


def test_a_bandit_begins_anew_with_each_row_whenever_the_row_joins() -> None:
    model, prompts = model_of("sdar", 0, 2.0, 4, ()), [*PROMPTS, *PROMPTS[::-1]]
    options: Any = {"gen_length": 24, "temperature": 0.8, "verifier": S2D2(UCB())}
    together = decode(model, prompts, ConfidenceThreshold(0.4), **options)
    joined = decode_many(model, prompts, ConfidenceThreshold(0.4), num_rows=2, **options)
    for row, out in enumerate(joined):
        assert torch.equal(out.tokens[0], together.tokens[row])
        assert out.nfe.item() == together.nfe[row].item()


def test_wrong_use_is_refused_by_name() -> None:
    options: Any = {"verifier": S2D2(), "gen_length": 8, "block_length": 4}
    bidirectional = HashModel()
    with pytest.raises(ValueError, match=r"needs a block-causal model.*Use SelfVerify"):
        decode(bidirectional, [[1]], ConfidenceThreshold(), **options)
    model = model_of("sdar", 0, 2.0, 4, ())
    with pytest.raises(ValueError, match="depend on the committed tokens"):
        decode(model, [[1]], ConfidenceThreshold(), cache=FreeCache("official"), **options)
    with pytest.raises(ValueError, match="opens all masks of a block at once"):
        decode(model, [[1]], ConfidenceThreshold(), blocks=MultiBlock(), **options)
    with pytest.raises(ValueError, match="top_p, top_k"):
        decode(model, [[1]], ConfidenceThreshold(), top_k=3, **options)


@dataclass(frozen=True)
class Overwrites(ConfidenceThreshold):
    """Commits settled positions too, which no sampler may."""

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        return Decision(commit=torch.ones_like(view.masked)), None


def test_a_sampler_that_breaks_its_contract_is_named_not_the_verifier() -> None:
    model = model_of("sdar", 0, 2.0, 4, ())
    with pytest.raises(RuntimeError, match=r"Overwrites\(.*must commit eligible positions only"):
        decode(
            model, PROMPTS, Overwrites(), verifier=S2D2(MinimumSpan(1)), gen_length=8,
            block_length=4,
        )  # fmt: skip


def test_causal_drafts_must_be_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    read = forward

    def as_rows(decoder: Decoder, state: State, spec: Pass) -> tuple[State, Tensor]:
        assert isinstance(spec.branches, Branches)
        return read(
            decoder, state, spec._replace(branches=spec.branches._replace(in_columns=False))
        )

    monkeypatch.setattr(s2d2, "forward", as_rows)
    with pytest.raises(RuntimeError, match="causal_from of Branches must be None"):
        decode(
            model_of("sdar", 0, 2.0, 4, ()), [[1]], ConfidenceThreshold(),
            verifier=S2D2(MinimumSpan(1)), gen_length=8,
        )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_probability_of_a_verified_token_is_that_of_reading_from_left_to_right(
    family: str, temperature: float
) -> None:
    model, num_commits = model_of(family, 0, 2.0, 4, ()), 0
    out = decode(
        model, PROMPTS, ConfidenceThreshold(0.5), verifier=S2D2(MinimumSpan(1)), gen_length=12,
        block_length=4, temperature=temperature, return_logprobs=True,
    )  # fmt: skip
    assert out.commits is not None
    for row, prompt in enumerate(PROMPTS):
        text = [*prompt, *out.tokens[row].tolist()]
        for position in (out.commits.steps[row] >= 0).nonzero().flatten().tolist():
            column = len(prompt) + position
            logits = read_alone(model, text[:column], column - column % 4)
            logits[[model.mask_id, *model.banned_ids]] = -torch.inf
            for values, by in (
                (out.commits.logprobs, temperature or 1.0),
                (out.commits.model_logprobs, 1.0),
            ):
                expected = (logits / by).log_softmax(-1)[text[column]]
                torch.testing.assert_close(values[row, position], expected)
            num_commits += 1
    assert num_commits > 20

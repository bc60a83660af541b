from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fuzzed_cases import MASK, VOCAB_SIZE, model_of
from jaxtyping import Float
from torch import Tensor
from toys import HashModel

from dllm_decode import (
    S2D2,
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
    decode,
)
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.decoder import Decoder
from dllm_decode.forward import forward
from dllm_decode.models.base import ForwardInputs, MaskPredictor
from dllm_decode.verify.s2d2 import s2d2
from samplers import ConfidenceThreshold, JointThreshold
from samplers.base import Decision
from samplers.view import View

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


@pytest.mark.parametrize("family", ["sdar", "fast_dllm_v2"])
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
    assert router.verifies(view, view.span, verified).tolist() == [False, True, True]
    assert ScoreThreshold(0.9, -0.5).verifies(view, view.span, verified).tolist() == [
        True, False, True,
    ]  # fmt: skip
    # A full block has nothing to verify.
    assert not router.verifies(view, ~view.span, verified).any()


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
    with pytest.raises(ValueError, match=r"off must be below on=0\.0, got 0\.5"):
        ScoreThreshold(0.0, 0.5)
    with pytest.raises(ValueError, match="router must be"):
        S2D2(0.5)  # type: ignore[arg-type]  # refused
    with pytest.raises(ValueError, match="length must be"):
        MinimumSpan(0)


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

"""Statistics that a view offers, against closed forms and float64."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import view_of, view_with, with_confidences
from pretended import Operations
from torch import Tensor

from samplers import View
from samplers.logits import statistics
from samplers.logits.noise import row_keys
from samplers.logits.statistics import (
    highest,
    highest_one,
    log_probability,
    most_likely,
    num_larger,
    ranks,
    top_k,
)
from samplers.logits.summary import Summary


def random_view(dtype: torch.dtype, *, rows: int = 3, temperature: float = 0.0) -> View:
    generator = torch.Generator().manual_seed(5)
    logits = (6 * torch.randn(rows, 4, 30, generator=generator)).to(dtype)
    logits[..., 20:] = -torch.inf
    view = with_confidences(*[[0.5] * 4] * rows)
    keys = row_keys(7, torch.arange(rows))
    return replace(view, summary=Summary(logits), temperature=temperature, noise_keys=keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_statistics_are_those_of_the_exact_softmax(dtype: torch.dtype) -> None:
    view = random_view(dtype)
    exact = view.logits.double().softmax(-1)
    top = exact.topk(2).values
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    expected = {
        "confidence": top[..., 0],
        "margin": top[..., 0] - top[..., 1],
        "entropy": torch.special.entr(exact).sum(-1),
    }
    for name, value in expected.items():
        got = getattr(view, name)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(got.double(), value, rtol=tolerance, atol=tolerance)
    assert torch.equal(view.proposal, exact.argmax(-1))


def confident_logits(dtype: torch.dtype) -> Tensor:
    """Logits of 20 to 60 over a real vocabulary, with confidences from 0.99 to 1."""
    generator = torch.Generator().manual_seed(2)
    V, rows = 126_464, 24
    largest = 20 + 40 * torch.rand(1, rows, 1, generator=generator)
    # One token far ahead of a long tail: alike in half of the rows, so that each of its shares is
    # too small to be added to 1 in float32, and uneven in the others.
    tail = torch.logspace(-6, -2, rows)[None, :, None] / V
    noise = torch.randn(1, rows, V, generator=generator)
    noise[:, ::2] = 0.0
    logits = largest + tail.log() + noise - noise.exp().mean(-1, keepdim=True).log()
    logits[..., 77_777] = largest[..., 0]
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_confidences_near_one_have_a_resolution_of_their_own(dtype: torch.dtype) -> None:
    """A bug: exp(logit - log_normaliser) has the resolution of the logits, 4e-6 at 40, so that
    different confidences tied, and some crossed a threshold of 0.9999."""
    logits = confident_logits(dtype)
    view = view_with(logits)
    share = logits.double().softmax(-1)
    confident = share.amax(-1) > 0.99
    assert confident.sum() >= 20
    best = torch.full_like(view.tokens, 77_777)
    for got in (view.confidence, view.probability(best), view.likeliest(2).probabilities[..., 0]):
        assert (got.double() - share.amax(-1))[confident].abs().max() <= 2e-7
    direct = statistics.probability(logits, best)
    assert (direct.double() - share.amax(-1))[confident].abs().max() <= 2e-7
    unlikely = view.probability(torch.full_like(best, 5)).double()
    torch.testing.assert_close(unlikely, share[..., 5], rtol=2e-5, atol=0)


def test_huge_logits_neither_overflow_nor_draw_nan() -> None:
    logits = torch.tensor([[[1e4, 1e4 - 3.0, -1e4]]])
    for temperature in (0.0, 0.5, 100.0):
        view = view_with(logits, temperature=temperature)
        assert view.proposal.item() in (0, 1)
        expected = (0.0 if view.proposal.item() == 0 else -3.0) - math.log1p(math.exp(-3.0))
        assert view.confidence.item() == pytest.approx(math.exp(expected), rel=1e-2)


def test_the_confidence_of_a_drawn_token_knows_no_temperature() -> None:
    view = random_view(torch.float32, temperature=2.0)
    share = view.logits.softmax(-1)
    assert not torch.equal(view.proposal, share.argmax(-1))
    drawn = share.gather(-1, view.proposal[..., None]).squeeze(-1)
    torch.testing.assert_close(view.confidence, drawn)
    assert torch.equal(view.entropy, random_view(torch.float32).entropy)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_draws_have_the_frequencies_of_the_tempered_softmax(temperature: float) -> None:
    num, logits = 20_000, torch.tensor([1.5, 1.0, 0.0, -1.0, -torch.inf])
    keys = row_keys(3, torch.arange(num))
    view = view_with(logits.expand(num, 1, 5), temperature=temperature, noise_keys=keys)
    counts = view.proposal.flatten().bincount(minlength=5)
    expected = num * (logits / temperature).double().softmax(-1)
    assert counts[4] == 0
    # Chi-square with 3 degrees of freedom: 16.3 is passed once in a thousand.
    assert ((counts - expected)[:4] ** 2 / expected[:4]).sum() < 16.3


@pytest.mark.parametrize("hopeless", [math.nan, -math.inf])
def test_a_hopeless_score_ranks_behind_others_but_before_outsiders(hopeless: float) -> None:
    scores = torch.tensor([[hopeless, 0.5, 9.0]])
    among = torch.tensor([[True, True, False]])
    assert ranks(scores, among).tolist() == [[1, 0, 2]]
    assert highest_one(torch.full((1, 3), hopeless), among).tolist() == [[True, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_highest_one_is_that_of_the_ranking(dtype: torch.dtype) -> None:
    """`highest_one` does not sort; ties, NaN and infinities must not make the two differ."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 7, (400, 9), generator=generator)
    scores = torch.tensor([-2.0, 0.0, 0.5, 0.5, torch.inf, -torch.inf, torch.nan]).to(dtype)[drawn]
    among = torch.rand(scores.shape, generator=generator) < 0.3
    once = torch.ones(len(scores), dtype=torch.long)
    assert torch.equal(highest_one(scores, among), highest(scores, among, once))
    assert not among.any(-1).all(), "every row had a candidate"


@pytest.mark.parametrize("vocab_size", [1, 2, 1023, 2048, 2559, 7000])
def test_the_largest_logits_are_found_in_any_vocabulary(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (3 * torch.randn(4, 9, vocab_size, generator=generator)).bfloat16()
    logits[0, :, : vocab_size // 2] = -torch.inf
    # Few values: most are ties, within and between the blocks that are searched.
    logits[1] = logits[1].clamp(-1, 2).round()
    logits[2, :, -1] = 100.0
    # The second is tied between the best block and an earlier one.
    for token, logit in ((600, 99.0), (1700, 99.0), (1600, 100.0)):
        logits[3, :, token % vocab_size] = logit
    # A slice of columns, as a window is.
    logits = logits[:, 2:7]
    order = logits.sort(dim=-1, descending=True, stable=True)
    for n in (n for n in (1, 2, 5) if n <= vocab_size):
        top = top_k(logits, n)
        assert torch.equal(top.logits.bfloat16(), order.values[..., :n])
        assert torch.equal(logits.gather(-1, top.tokens), order.values[..., :n])
        if n <= 2:
            possible = order.values[..., :n] > -torch.inf
            assert torch.equal(top.tokens[possible], order.indices[..., :n][possible])
    assert torch.equal(most_likely(logits), order.indices[..., 0])


@pytest.mark.parametrize("vocab_size", [2, 600, 2048, 7000])
def test_a_token_is_not_the_second_largest_too(vocab_size: int) -> None:
    """If all other tokens were -inf outside its block, a certain token had a margin of 0, and
    other tokens were committed."""
    certain = torch.tensor([0, 1, vocab_size // 2, vocab_size - 1])
    logits = torch.full((1, 4, vocab_size), -torch.inf)
    logits[0, torch.arange(4), certain] = 5.0
    top = top_k(logits, 2)
    assert torch.equal(top.tokens[0, :, 0], certain)
    assert (top.tokens[0, :, 0] != top.tokens[0, :, 1]).all()
    assert (top.logits[..., 1] == -torch.inf).all()


def test_it_makes_no_difference_what_is_asked_for_first() -> None:
    names = ("most_likely", "confidence", "margin", "entropy")
    expected = {name: getattr(random_view(torch.bfloat16), name) for name in names}
    for first, second in itertools.permutations(names, 2):
        view = random_view(torch.bfloat16)
        assert torch.equal(getattr(view, first), expected[first])
        assert torch.equal(getattr(view, second), expected[second])


@pytest.mark.parametrize(
    ("dtype", "temperature"), [(torch.bfloat16, 0.0), (torch.float32, 1.0), (torch.float64, 0.0)]
)
def test_no_statistic_copies_the_logits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, temperature: float
) -> None:
    """A bug: a window that was a slice of the logits was copied whole by each statistic."""
    B, W, V = 4, 8, 20_000
    limit = 4 * V * torch.float64.itemsize
    monkeypatch.setattr("samplers.logits.statistics._CHUNK_BYTES", {"cpu": limit, "cuda": limit})
    logits = torch.randn(B, W + 2, V, generator=torch.Generator().manual_seed(0)).to(dtype)
    view = view_with(logits[:, 1:-1], temperature=temperature)
    sizes: list[int] = []

    def measure(func: Any, arguments: Any, outputs: Any) -> None:
        for part in outputs if isinstance(outputs, tuple | list) else [outputs]:
            if isinstance(part, Tensor) and part.untyped_storage().data_ptr() != logits.data_ptr():
                sizes.append(part.untyped_storage().nbytes())

    with Operations(measure):
        for name in ("proposal", "confidence", "margin", "entropy"):
            getattr(view, name)
        view.top_k(5)
    assert len(sizes) > 20
    # Above the chunk, masks of a byte and what is searched for the largest.
    assert 0 < max(sizes) <= 1.1 * limit
    assert max(sizes) < logits[:, 1:-1].numel() * dtype.itemsize


def test_a_nan_is_not_taken_for_certainty() -> None:
    logits = torch.zeros(1, 2, 5)
    logits[0, 0, 3] = torch.nan
    view = view_of(torch.ones(1, 2, 4).double())
    view = replace(view, summary=Summary(logits))
    assert view.entropy.isnan().tolist() == [[True, False]]
    assert view.confidence.isnan().tolist() == [[True, False]]


def test_nothing_is_computed_for_an_empty_batch() -> None:
    view = view_of(torch.zeros(0, 3, 4).double())
    assert view.confidence.shape == view.entropy.shape == view.proposal.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_ranks_and_log_probabilities_of_given_tokens_are_those_of_the_whole_distribution(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of two positions, so that there are several.
    monkeypatch.setitem(statistics._CHUNK_BYTES, "cpu", 2 * 8 * 30)
    logits = random_view(dtype).logits
    tokens = torch.arange(12).view(3, 4) * 2
    token_logits = logits.gather(-1, tokens[..., None])
    assert torch.equal(
        num_larger(logits, token_logits.squeeze(-1)), (logits > token_logits).sum(-1)
    )
    assert len((logits > token_logits).sum(-1).unique()) > 3
    exact = (logits.double() / 0.7).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    logprobs = log_probability(logits, tokens, 0.7)
    assert logprobs.dtype == torch.float64
    torch.testing.assert_close(logprobs, exact)


@pytest.mark.parametrize("temperature", [1e-15, 1e-30])
def test_equal_tokens_share_a_log_probability_at_any_temperature(temperature: float) -> None:
    """The quotients are so large that log 2 was lost in rounding: both tokens had 0."""
    logits = torch.tensor([[[7.0, 7.0, 6.0]]])
    logprobs = log_probability(logits.expand(1, 3, 3), torch.tensor([[0, 1, 2]]), temperature)
    assert logprobs[0, :2].tolist() == pytest.approx([-math.log(2)] * 2)
    assert float(logprobs[0, 2]) == pytest.approx(-1 / temperature)


def test_the_divergence_is_that_of_the_new_distribution_from_the_old() -> None:
    """The last case is the authors' first step, which compares with zeros."""
    new, old, sure = (0.95, 0.04, 0.01), (0.80, 0.15, 0.05), (0.0, 0.0, 0.0, 1.0)
    for later, earlier, expected in (
        (new, (0.94, 0.05, 0.01), 0.001127), (new, old, 0.094293),
        ((0.7, 0.2, 0.1, 0.0), sure, 26.8292),
    ):  # fmt: skip
        logs = [torch.tensor([[shares]]).double().log() for shares in (later, earlier)]
        divergence = statistics.divergence(*logs).item()
        assert divergence == pytest.approx(expected, abs=5e-7, rel=2e-6)

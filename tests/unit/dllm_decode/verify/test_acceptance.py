"""The exact distribution of the written tokens, by enumeration of all drafts and all verdicts."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm_decode.verify import acceptance as accepting
from dllm_decode.verify.acceptance import accept_block, accept_by_ratio
from dllm_decode.verify.drafts import Draft
from samplers.logits.noise import mix

EOS = 2
# All probabilities are sixths, so a ratio of two is a whole number of sixtieths.
# Chances of a whole prefix have other denominators, found by enumeration.
EDGES = torch.tensor(
    sorted({Fraction(n, d) for d in (4, 7, 17, 18, 60) for n in range(d + 1)}), dtype=torch.double
)


def sixths(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.double) / 6.0


# The target's distributions: first token, second given the first, third given the second.
FIRST, SECOND = sixths(3, 2, 1), sixths([0, 3, 3], [6, 0, 0], [2, 2, 2])
THIRD = sixths([1, 0, 5], [2, 2, 2], [0, 6, 0])
TARGET = FIRST[:, None, None] * SECOND[:, :, None] * THIRD
# The drafter's distributions: each token by itself, and either token given the other.
Q1, Q2 = sixths(1, 2, 3), sixths(2, 4, 0)
GIVEN = sixths([6, 0, 0], [1, 3, 2], [0, 2, 4])

ALONE = Q1[:, None] * Q2
PAIRS = torch.cartesian_prod(torch.arange(3), torch.arange(3))
ONE_HOT = torch.eye(3, dtype=torch.double)
BEST = ONE_HOT[Q1.argmax()], ONE_HOT[Q2.argmax()]
MATCHED = FIRST[:, None] * SECOND


def stacked(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first.expand(9, 3), second.expand(9, 3)], 1)


def only_drafted(q: Tensor) -> Tensor:
    """Returns the probabilities of the drafted tokens, and 0 for all others."""
    return q * torch.nn.functional.one_hot(PAIRS, 3)


def answers(
    rule: Any, drawn: Tensor, claimed: Tensor, *, cut: bool, patch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """Returns the distributions of the first three tokens written, and of the accepted length.

    Args:
        rule: Which tokens of a draft are accepted.
        drawn: The distribution of two drafted tokens.
        claimed: For each of the nine drafts, the distributions that its tokens are said to be
            drawn from.
        cut: Whether a draft ends with an EOS.
        patch: Puts all verdicts in place of random ones.
    """
    # No chance is between two neighbouring edges, so that one verdict represents the interval.
    widths, middles = EDGES.diff(), (EDGES[1:] + EDGES[:-1]) / 2
    verdicts = torch.cartesian_prod(middles, middles)
    weights = torch.cartesian_prod(widths, widths).prod(-1)
    drafts = torch.arange(9).repeat_interleave(len(verdicts))
    tokens = PAIRS[drafts]
    counts = torch.where(tokens[:, 0] == EOS, 1, 2) if cut else torch.full_like(drafts, 2)
    target = torch.stack([FIRST.expand(9, 3), SECOND[PAIRS[:, 0]], THIRD[PAIRS[:, 1]]], 1)[drafts]
    replacements: list[Tensor] = []

    def note(logs: Tensor, temperature: float, keys: Tensor) -> Tensor:
        replacements.append((logs[:, 0] / temperature).softmax(-1))
        return torch.zeros_like(keys)

    patch.setattr(accepting, "uniform", lambda keys: verdicts.repeat(9, 1))
    patch.setattr(accepting, "draw", note)
    keys = torch.zeros(len(drafts), 3, dtype=torch.long)
    draft = Draft(tokens, counts, claimed[drafts].log())
    accepted = rule(draft, target.log(), keys).accepted
    shares = drawn.flatten()[drafts] * weights.repeat(9)
    (replaced,), drafted = replacements, ONE_HOT[tokens]
    length = accepted[:, None, None]
    first = torch.where(length[:, 0] > 0, drafted[:, 0], replaced)
    second = torch.where(length > 1, drafted[:, 1:], replaced[:, None])
    second = torch.where(length > 0, second, SECOND)
    third = torch.where(length > 1, replaced[:, None], THIRD)
    distribution = torch.einsum("n,na,nab,nbc->abc", shares, first, second, third)
    return distribution, torch.zeros(3).double().index_add(0, accepted, shares)


SAID: dict[str, tuple[Tensor, Tensor, bool]] = {
    "drawn": (ALONE, stacked(Q1, Q2), True),
    "drawn, given those to the left": (Q1[:, None] * GIVEN, stacked(Q1, GIVEN[PAIRS[:, 0]]), True),
    "drawn, given those to the right": ((Q2[:, None] * GIVEN).T, stacked(GIVEN[PAIRS[:, 1]], Q2),
                                        False),
    "searched, known to be": (BEST[0][:, None] * BEST[1], stacked(BEST[0], BEST[1]), True),
    "searched, said to be drawn": (BEST[0][:, None] * BEST[1], stacked(Q1, Q2), False),
    "searched, its probability at the draft alone":
        (BEST[0][:, None] * BEST[1], only_drafted(stacked(Q1, Q2)), False),
    "drawn, its probability at the draft alone": (ALONE, only_drafted(stacked(Q1, Q2)), False),
    "drawn as the target does": (MATCHED, stacked(FIRST, SECOND[PAIRS[:, 0]]), True),
}  # fmt: skip


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("said", SAID)
def test_answers_follow_the_targets_distribution_if_drafts_were_drawn_as_claimed(
    said: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DiffuSpec's own rule, "searched, said to be drawn", is among those that fail."""
    drawn, claimed, is_exact = SAID[said]
    assert float(drawn.sum()) == pytest.approx(1.0)
    distribution, accepted = answers(accept_by_ratio, drawn, claimed, cut=cut, patch=monkeypatch)
    assert float(distribution.sum()) == pytest.approx(1.0)
    error = float((distribution - TARGET).abs().max())
    assert error < 1e-12 if is_exact else error > 0.01
    if said == "drawn":
        assert (accepted[:2] > 0.1).all()
        assert bool(accepted[2] > 0.02)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("said", [said for said, (*_, is_exact) in SAID.items() if is_exact])
def test_a_block_is_accepted_by_the_targets_distribution_and_never_less_than_its_tokens(
    said: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, claimed, _ = SAID[said]
    options: Any = {"cut": cut, "patch": monkeypatch}
    distribution, block = answers(accept_block, drawn, claimed, **options)
    assert float((distribution - TARGET).abs().max()) < 1e-12
    _, by_token = answers(accept_by_ratio, drawn, claimed, **options)
    lengths = torch.arange(3).double()
    gain = float((block - by_token) @ lengths)
    assert gain > -1e-12


@pytest.mark.parametrize(("rule", "expected"), [(accept_by_ratio, 10 / 9), (accept_block, 11 / 9)])
def test_the_papers_example_of_a_block_has_the_papers_numbers(
    rule: Any, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sun et al. 2024, section 1: tokens drawn by (2/3, 1/3), wanted by (1/3, 2/3)."""
    ticks = (torch.arange(12, dtype=torch.double) + 0.5) / 12
    verdicts = torch.cartesian_prod(ticks, ticks)
    monkeypatch.setattr(accepting, "uniform", lambda keys: verdicts)
    q, total = sixths(4, 2), 0.0
    for tokens in ([0, 0], [0, 1], [1, 0], [1, 1]):
        num = len(verdicts)
        draft = Draft(
            torch.tensor([tokens] * num), torch.full((num,), 2), q.log().expand(num, 2, 2)
        )
        keys = torch.zeros(num, 3, dtype=torch.long)
        verdict = rule(draft, q.flip(0).log().expand(num, 3, 2), keys)
        total += float(q[tokens].prod()) * float(verdict.accepted.double().mean())
    assert total == pytest.approx(expected)


def test_of_long_drafts_what_is_accepted_ends_with_the_first_rejection() -> None:
    """Ratios are computed for a few positions at a time, from logits or log-probabilities."""
    num, K, temperature = 300, 13, 0.7
    generator = torch.Generator().manual_seed(0)
    p = 0.5 * torch.randn(num, K + 1, 4, generator=generator).double()
    q = p[:, :-1] + 0.2 * torch.randn(num, K, 4, generator=generator).double()
    keys = mix(torch.arange(num * (K + 1))).view(num, K + 1)
    tokens, counts = torch.arange(num * K).view(num, K) % 4, torch.arange(num) % (K + 1)
    verdict = accept_by_ratio(
        Draft(tokens, counts, q, temperature), p, keys, temperature=temperature
    )
    logs = [(part / temperature).log_softmax(-1) for part in (p, q)]
    same = accept_by_ratio(Draft(tokens, counts, logs[1]), logs[0], keys)
    assert torch.equal(verdict.accepted, same.accepted)
    written = torch.arange(K + 1) <= verdict.accepted[:, None]
    assert torch.equal(verdict.tokens[written], same.tokens[written])
    ratio = (logs[0][:, :-1] - logs[1]).gather(-1, tokens[..., None]).squeeze(-1)
    passes = accepting.uniform(mix(keys[:, :-1] ^ accepting._VERDICTS)).log() < ratio
    for row in range(num):
        kept = next((i for i in range(int(counts[row])) if not passes[row, i]), int(counts[row]))
        assert verdict.accepted[row] == kept
    assert len(verdict.accepted.unique()) == K + 1


def test_nothing_impossible_is_written_where_rounding_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two distributions that are equal but for rounding have no positive difference left."""
    monkeypatch.setattr(
        accepting, "uniform", lambda keys: torch.full(keys.shape, 1.0 - 2.0**-53).double()
    )
    p = torch.tensor([[[-torch.inf, 0.0]] * 2], dtype=torch.double)
    draft = Draft(torch.tensor([[1]]), torch.tensor([1]), p[:, :1] + 1e-12)
    verdict = accept_by_ratio(draft, p, torch.zeros(1, 2, dtype=torch.long))
    assert verdict.accepted.tolist() == [0]
    assert verdict.tokens[0, 0] == 1

"""CreditDecoding: the paper's equations, exact although sparse, around any sampler."""

import pytest
import torch
from plugins_under_test import view_with
from tiny_models import load_tiny
from torch import Tensor

from dllm_decode import decode
from samplers import CreditDecoding, Decision, Klass, Sampler, State, View, parse

BASES = [parse(text) for text in (
    "ConfidenceThreshold(0.6)", "EntropyBound(0.5)", "EntropyThreshold(0.9)", "Factor(1.5)",
    "FixedSchedule(3, 'entropy')", "FixedSchedule(3, 'margin')", "FixedSchedule(3, 'random')",
    "Frechet()", "Hierarchy()", "Klass(0.3, 0.5, 1)", "Less(0.3, 0.2)", "LocalLeap(0.7, 0.5)",
)]  # fmt: skip


def random_logits(seed: int, shape: tuple[int, ...] = (3, 6, 11), scale: float = 2.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[..., -1] = -torch.inf
    return logits


def from_probabilities(*values: float) -> Tensor:
    return torch.tensor([[values]], dtype=torch.float64).log()


class Spy(Sampler):
    """Remembers the views it is shown and commits nothing."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        self.views.append(view)
        return Decision(commit=torch.zeros_like(view.masked)), state


def fused_views(credit: CreditDecoding, steps: list[View]) -> tuple[list[View], list[Tensor]]:
    """Runs the steps and returns what the base saw, and the credit as a dense tensor."""
    spy = Spy()
    watched = CreditDecoding(spy, credit.alpha, credit.beta, credit.gamma)
    state = watched.init(steps[0])
    credits = []
    for view in steps:
        _, state = watched.step(view, state)
        assert isinstance(state, tuple)
        tokens, values = state[:2]
        dense = torch.zeros(view.logits.shape, dtype=values.dtype)
        credits.append(dense.scatter_add_(-1, tokens.clamp(min=0), values))
    return spy.views, credits


def dense_fused(credit: CreditDecoding, steps: list[View]) -> list[Tensor]:
    """The paper's equations 6 and 7, written down with a credit for every token."""
    total = torch.zeros_like(steps[0].logits)
    fused = []
    for view in steps:
        probabilities = view.logits.softmax(-1)
        best = torch.nn.functional.one_hot(probabilities.argmax(-1), view.logits.shape[-1])
        total = credit.beta * total + best * probabilities**credit.gamma
        fused.append(view.logits + credit.alpha * torch.log(1 + total))
    return fused


def test_the_published_example_holds() -> None:
    shares = [(0.6, 0.3, 0.1), (0.7, 0.2, 0.1), (0.45, 0.5, 0.05)]
    views, credits = fused_views(
        CreditDecoding(), [view_with(from_probabilities(*share)) for share in shares]
    )
    expected_credit = [(0.902880, 0, 0), (1.563166, 0, 0), (1.094216, 0.870551, 0)]
    expected_shares = [
        (0.695012, 0.228741, 0.076247),
        (0.811396, 0.125736, 0.062868),
        (0.475922, 0.491371, 0.032706),
    ]
    for view, credit, wanted, fused in zip(
        views, credits, expected_credit, expected_shares, strict=True
    ):
        assert credit[0, 0].tolist() == pytest.approx(wanted, abs=1e-6)
        ids = torch.arange(3)[:, None, None]
        got = [view.probability(token).item() for token in ids]
        assert got == pytest.approx(fused, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.65, 4.0])
def test_sparse_credit_equals_dense_credit(alpha: float) -> None:
    credit = CreditDecoding(alpha=alpha, beta=0.95)
    # Fewer tokens than steps: slots are merged, and leaders come back.
    steps = [view_with(random_logits(seed, (2, 9, 4), 1.0)) for seed in range(9)]
    views, _ = fused_views(credit, steps)
    changed = 0
    for view, logits, plain in zip(views, dense_fused(credit, steps), steps, strict=True):
        dense = view_with(logits)
        assert torch.equal(view.proposal, dense.proposal)
        for name in ("confidence", "margin", "entropy", "log_normaliser"):
            torch.testing.assert_close(getattr(view, name), getattr(dense, name))
        for n in (1, 2, 3):
            torch.testing.assert_close(view.top_k(n).logits, dense.top_k(n).logits)
            assert torch.equal(view.top_k(n).tokens, dense.top_k(n).tokens)
        columns = torch.tensor([[1, 5], [8, 0]])
        torch.testing.assert_close(view.top_k(2, columns).logits, dense.top_k(2, columns).logits)
        torch.testing.assert_close(view.logits, logits)
        changed += int((dense.proposal != plain.proposal).sum())
    assert changed > 0


def test_statistics_stay_exact_when_the_leader_is_nearly_certain() -> None:
    credit = CreditDecoding(alpha=2.0)
    steps = [view_with(random_logits(seed, scale=15.0)) for seed in range(4)]
    views, _ = fused_views(credit, steps)
    for view, logits in zip(views, dense_fused(credit, steps), strict=True):
        torch.testing.assert_close(view.entropy, view_with(logits).entropy, atol=1e-9, rtol=1e-6)
        assert (view.confidence <= 1.0).all()


def test_half_precision_logits_are_fused_in_float32() -> None:
    steps = [view_with(random_logits(seed).bfloat16()) for seed in range(3)]
    wide = [view_with(view.logits.float()) for view in steps]
    views, _ = fused_views(CreditDecoding(), steps)
    for view, logits in zip(views, dense_fused(CreditDecoding(), wide), strict=True):
        assert view.confidence.dtype == torch.float32
        torch.testing.assert_close(view.confidence, view_with(logits).confidence)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("base", BASES, ids=repr)
def test_the_base_decides_as_on_a_dense_copy_of_the_fused_logits(
    base: Sampler, temperature: float
) -> None:
    credit = CreditDecoding(base, alpha=1.5)
    steps = [view_with(random_logits(seed), temperature=temperature) for seed in range(3)]
    state = credit.init(steps[0])
    dense_state = base.init(steps[0])
    committed = 0
    for view, logits in zip(steps, dense_fused(credit, steps), strict=True):
        decision, state = credit.step(view, state)
        dense = view_with(logits, temperature=temperature)
        expected, dense_state = base.step(dense, dense_state)
        assert torch.equal(decision.commit, expected.commit)
        assert decision.tokens is not None
        assert torch.equal(decision.tokens, dense.proposal)
        committed += int(decision.commit.sum())
    assert committed > 0


def test_a_second_wrapper_adds_its_credit_to_the_first() -> None:
    steps = [view_with(random_logits(seed)) for seed in range(3)]
    outer = CreditDecoding(alpha=1.0)
    inner_steps = [view_with(logits) for logits in dense_fused(outer, steps)]
    expected = dense_fused(CreditDecoding(), inner_steps)
    spy = Spy()
    twice = CreditDecoding(CreditDecoding(spy), alpha=1.0)
    state = twice.init(steps[0])
    for view in steps:
        _, state = twice.step(view, state)
    for view, logits in zip(spy.views, expected, strict=True):
        torch.testing.assert_close(view.confidence, view_with(logits).confidence)


def test_the_state_holds_pairs_and_nothing_of_vocabulary_size() -> None:
    view = view_with(random_logits(0, (2, 4, 1000)))
    state = CreditDecoding().init(view)
    assert isinstance(state, tuple)
    assert [part.shape for part in state[:2]] == [(2, 4, 32), (2, 4, 32)]


def test_a_committed_position_loses_its_credit() -> None:
    sampler = CreditDecoding()
    view = view_with(random_logits(0))
    _, state = sampler.step(view, sampler.init(view))
    eligible = view.eligible.clone()
    eligible[:, 2] = False
    later = View(view.tokens, view.computed, eligible, eligible, start=0, gen_length=6)
    _, state = sampler.step(later, state)
    assert isinstance(state, tuple)
    assert not state[1][:, 2].any()
    assert state[1][:, 3].any()


def test_a_base_that_remembers_logits_decodes_in_bfloat16() -> None:
    """The base remembered bfloat16 at first and float32 from then on, which was an error."""
    model = load_tiny("llada", dtype=torch.bfloat16)
    sampler = CreditDecoding(Klass(0.4, 0.05))
    out = decode(model, [[5, 6, 7]], sampler, gen_length=8, block_length=8, stop_at_eos=False)
    assert not (out.tokens == model.mask_id).any()

"""CreditDecoding: the paper's equations, exact although sparse, around any sampler."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from tiny_models import load_tiny
from torch import Tensor

from dllm_decode import decode
from samplers import CreditDecoding, Decision, Klass, Sampler, View


def random_logits(seed: int, shape: tuple[int, ...] = (3, 6, 11), scale: float = 2.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[..., -1] = -torch.inf
    return logits


class Spy(Sampler):
    """Remembers the views it is shown, counts its steps and commits nothing."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def init(self, view: View) -> Tensor:
        return torch.zeros(len(view.tokens))

    def step(self, view: View, state: Any) -> tuple[Decision, Tensor]:
        self.views.append(view)
        return Decision(commit=torch.zeros_like(view.masked)), state + 1


def fused_views(credit: CreditDecoding, steps: list[View]) -> list[View]:
    """Runs the steps and returns what the base saw."""
    spy = Spy()
    watched = CreditDecoding(spy, credit.alpha, credit.beta, credit.gamma)
    state = watched.init(steps[0])
    for number, view in enumerate(steps, start=1):
        decision, state = watched.step(view, state)
        assert torch.equal(decision.tokens, spy.views[-1].proposal)
        assert (state.base == number).all()
    return spy.views


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


# Fewer tokens than steps: slots are merged, and leaders come back. Then a leader that is nearly
# certain, and half precision, which is fused in float32.
@pytest.mark.parametrize(("alpha", "temperature"), [(0.65, 0.0), (4.0, 0.0), (4.0, 0.7)])
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1.0, torch.float64), (15.0, torch.float64), (2.5, torch.bfloat16)]
)
def test_sparse_credit_equals_dense_credit(
    alpha: float, temperature: float, scale: float, dtype: torch.dtype
) -> None:
    credit = CreditDecoding(alpha=alpha, beta=0.95)
    drawn = [random_logits(seed, (2, 9, 4), scale).to(dtype) for seed in range(9)]
    steps = [view_with(logits, temperature=temperature) for logits in drawn]
    wide = [view.with_logits(view.logits.to(view.dtype)) for view in steps]
    views = fused_views(credit, steps)
    changed = 0
    for view, logits, plain in zip(views, dense_fused(credit, wide), wide, strict=True):
        dense = view_with(logits, temperature=temperature)
        assert torch.equal(view.proposal, dense.proposal)
        for name in ("confidence", "margin", "entropy", "logits"):
            torch.testing.assert_close(getattr(view, name), getattr(dense, name))
        for n in (1, 2, 3):
            torch.testing.assert_close(view.top_k(n).logits, dense.top_k(n).logits)
            assert torch.equal(view.top_k(n).tokens, dense.top_k(n).tokens)
        columns = torch.tensor([[1, 5], [8, 0]])
        torch.testing.assert_close(view.top_k(2, columns).logits, dense.top_k(2, columns).logits)
        changed += int((dense.proposal != plain.proposal).sum())
    assert changed > 0 or scale == 15.0


def test_a_second_wrapper_adds_its_credit_to_the_first() -> None:
    steps = [view_with(random_logits(seed)) for seed in range(3)]
    outer = CreditDecoding(alpha=1.0)
    inner_steps = [view_with(logits) for logits in dense_fused(outer, steps)]
    expected = dense_fused(CreditDecoding(), inner_steps)
    spy = Spy()
    twice = CreditDecoding(CreditDecoding(spy), alpha=1.0)
    state = twice.init(steps[0])
    # The state has no axis of the vocabulary's size.
    assert [part.shape[-1] for part in state[:2]] == [32, 32]
    for view in steps:
        _, state = twice.step(view, state)
    for view, logits in zip(spy.views, expected, strict=True):
        torch.testing.assert_close(view.confidence, view_with(logits).confidence)
    # Positions that are committed, or not open yet, have no credit.
    closed = steps[0].eligible.clone()
    closed[:, 2] = False
    _, state = twice.step(replace(steps[0], eligible=closed), state)
    assert (state[1].any(-1) == closed).all()


def test_a_base_that_remembers_logits_decodes_in_bfloat16() -> None:
    """The base remembered bfloat16 at first and float32 from then on, which was an error."""
    model = load_tiny("llada", dtype=torch.bfloat16)
    sampler = CreditDecoding(Klass(0.4, 0.05))
    out = decode(model, [[5, 6, 7]], sampler, gen_length=8, block_length=8, stop_at_eos=False)
    assert not (out.tokens == model.mask_id).any()

"""Acceptance by entropy on views made by hand; golden runs are in tests/golden."""

import pytest
import torch
from plugins_under_test import view_of, with_entropies

from samplers import AcceptAndRenoise
from samplers.logits.noise import row_keys


def test_positions_are_accepted_while_the_entropies_before_them_fit_the_bound() -> None:
    view = with_entropies([0.3, 0.1, 0.25, 0.6], [0.5, 0.5, 0.5, 0.5])
    found = AcceptAndRenoise(0.35001).accepted(view)
    assert found.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert AcceptAndRenoise(1e-9).accepted(view).sum(-1).tolist() == [1, 1]


def test_the_temperature_falls_and_never_reaches_its_end() -> None:
    view = view_of(torch.tensor([[[0.7, 0.2, 0.1]]]).double())
    rule = AcceptAndRenoise(num_steps=4, t_min=0.4, t_max=0.8, confidence_threshold=1e-9)
    state, found = rule.init(view), []
    for _ in range(4):
        decision, state = rule.step(view, state)
        found.append(float(view.logits[0, 0, 0] / state.belief[0, 0, 0]))
    assert found == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert decision.settle is not None
    assert decision.settle.all()


@pytest.mark.parametrize("threshold", [0, 1, 3])
def test_a_canvas_ends_once_its_best_tokens_are_those_of_the_last_steps(threshold: int) -> None:
    sure = view_of(torch.tensor([[[0.999999, 5e-7, 5e-7]]]).double())
    rule = AcceptAndRenoise(stability_threshold=threshold)
    state, ends = rule.init(sure), []
    for _ in range(5):
        decision, state = rule.step(sure, state)
        assert decision.settle is not None
        ends.append(bool(decision.settle.all()))
    assert ends.index(True) == threshold


def test_random_tokens_are_uniform_and_depend_on_row_position_and_step() -> None:
    view = view_of(torch.full((8, 512, 7), 1 / 7).double(), noise_keys=row_keys(0, torch.arange(8)))
    drawn = [view.at_step(torch.full((8,), step)).random_tokens() for step in range(3)]
    counts = torch.stack(drawn).flatten().bincount(minlength=view.vocab_size)
    expected = counts.sum() / len(counts)
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3  # 0.999 of chi-squared, df 7
    assert (drawn[0] != drawn[1]).double().mean() == pytest.approx(7 / 8, abs=0.02)
    assert (drawn[0][0] != drawn[0][1]).any()
    again = view.take(torch.tensor([3])).at_step(torch.tensor([2])).random_tokens()
    assert torch.equal(again[0], drawn[2][3])

"""The paper's schedule on confidences made by hand; the laws cover the rest."""

import torch
from plugins_under_test import pinned, positions, with_confidences

from samplers import MaskPredict


def test_the_least_confident_tokens_are_masked_again() -> None:
    rule = MaskPredict(3)
    view = pinned(with_confidences((0.9,) * 5), confidence=[[0.5, 0.9, 0.4, 0.8, 0.6]])
    decision, state = rule.step(view, rule.init(view))
    assert positions(decision.commit) == [[1, 3]]  # floor(5 * 2 / 3) = 3 stay masked

    filled = torch.tensor([[False, True, False, True, False]])
    view = pinned(with_confidences((0.9,) * 5), confidence=[[0.95, 0.1, 0.85, 0.1, 0.7]])
    object.__setattr__(view, "masked", ~filled)
    decision, state = rule.step(view, state)
    # One of five stays masked: position 4. Position 1 keeps the confidence of its proposal, 0.9.
    assert positions(decision.commit) == [[0, 2]]
    assert positions(decision.remask) == [[]]

    view = pinned(with_confidences((0.9,) * 5), confidence=[[0.1] * 4 + [0.3]])
    object.__setattr__(view, "masked", torch.tensor([[False] * 4 + [True]]))
    decision, _ = rule.step(view, state)
    assert positions(decision.commit) == [[4]]
    assert positions(decision.settle) == [[0, 1, 2, 3, 4]]


def test_a_token_of_an_earlier_step_is_doubted() -> None:
    rule = MaskPredict(3)
    view = pinned(with_confidences((0.9,) * 3), confidence=[[0.3, 0.2, 0.1]])
    decision, state = rule.step(view, rule.init(view))
    assert positions(decision.commit) == [[0]]
    view = pinned(with_confidences((0.9,) * 3), confidence=[[1.0, 0.6, 0.7]])
    object.__setattr__(view, "masked", torch.tensor([[False, True, True]]))
    decision, _ = rule.step(view, state)
    assert positions(decision.commit) == [[1, 2]]
    assert positions(decision.remask) == [[0]]


def test_a_block_that_an_eos_cut_short_goes_on() -> None:
    """With fewer positions left than the schedule counts on, a step changed nothing."""
    rule = MaskPredict(10)
    view = pinned(with_confidences((0.9,) * 8), confidence=[[0.9, 0.8, 0.7] + [0.1] * 5])
    decision, state = rule.step(view, rule.init(view))
    assert positions(decision.commit) == [[0]]
    view = pinned(with_confidences((0.9,) * 8), confidence=[[0.9, 0.8, 0.7] + [0.1] * 5])
    for masked, commit, settle in (([1, 2], [1], []), ([2], [2], []), ([], [], [0, 1, 2])):
        object.__setattr__(view, "eligible", torch.arange(8)[None] < 3)
        object.__setattr__(view, "masked", torch.isin(torch.arange(8), torch.tensor(masked))[None])
        decision, state = rule.step(view, state)
        assert positions(decision.commit) == [commit]
        assert positions(decision.settle) == [settle]

"""The laws for authors: a rule that breaks a law is caught, and the error names the law."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from samplers import Decision, Sampler, View
from samplers.logits.statistics import highest_one
from samplers.testing import check_laws, view_of


class Count(NamedTuple):
    steps: Tensor


@dataclass(frozen=True)
class Broken(Sampler[Any]):
    fault: str

    def max_steps(self, num_masks: int) -> int:
        return 1 if self.fault == "late" else num_masks

    def init(self, view: View) -> Count:
        return Count(torch.zeros(len(view.tokens)))

    def step(self, view: View, state: Count) -> tuple[Decision, Count]:
        best = highest_one(view.confidence, view.eligible)
        after = Count(state.steps + 1)
        match self.fault:
            case "greedy":
                return Decision(best | ~view.masked), after
            case "idle":
                return Decision(best & (state.steps > 0)[:, None]), after
            case "mask":
                return Decision(best, torch.full_like(view.tokens, view.vocab_size - 1)), after
            case "batch":
                return Decision(view.eligible & (view.confidence >= view.confidence.mean())), after
            case "view":
                view.eligible[best] = False
            case "state":
                state.steps.add_(1)
        return Decision(best), after


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("greedy", "not eligible"), ("idle", "did not move"), ("mask", "excluded token"),
        ("batch", "(without the other rows|did not move)"), ("view", "changed eligible"),
        ("state", "changed the state"), ("late", "more than max_steps, 1"),
    ],
)  # fmt: skip
def test_a_rule_that_breaks_a_law_is_caught(fault: str, law: str) -> None:
    check_laws(Broken("none"))
    with pytest.raises(AssertionError, match=f"{law}.*law .* of Broken.* seed 1"):
        check_laws(Broken(fault))


def test_a_state_that_is_no_tensor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "init", lambda self, view: [0])
    with pytest.raises(AssertionError, match=r"A state must be None, .* got \[0\]\."):
        check_laws(Broken("none"))


def test_a_view_is_made_from_logits() -> None:
    logits = torch.tensor([[[0.0, 2.0], [3.0, 0.0]]])
    view = view_of(logits, torch.tensor([[True, False]]), gen_length=5)
    assert view.proposal[0, 0] == 1
    assert view.tokens.tolist() == [[2, 0]]
    assert view.num_left.tolist() == [4]

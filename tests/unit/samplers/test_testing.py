"""The laws for authors: a rule that breaks a law is caught, and the error names the law."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from plugins_under_test import plugin, rule
from torch import Tensor
from toys import HashModel

from dllm_decode import decode
from samplers import ConfidenceThreshold, Decision, RevisingSampler, Sampler, View, Wino
from samplers.facts import Fact
from samplers.logits.statistics import highest_one
from samplers.testing import check_rule, view_with


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
                view.tokens[best] = 0
            case "token":
                return Decision(best, torch.full_like(view.tokens, 9999)), after
            case "state":
                state.steps.add_(1)
        return Decision(best), after


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("greedy", "not eligible"), ("idle", "did not move"), ("mask", "excluded token"),
        ("batch", "(without the other rows|did not move)"), ("view", "changed tokens"),
        ("token", "not in .0, 12."),
        ("state", "changed the state"), ("late", "more than max_steps, 1"),
    ],
)  # fmt: skip
def test_a_rule_that_breaks_a_law_is_caught(fault: str, law: str) -> None:
    check_rule(Broken("none"))
    with pytest.raises(AssertionError, match=f"{law}.*law .* of Broken.* seed 1"):
        check_rule(Broken(fault))


def write(view: View) -> Decision:
    wanted = view.eligible
    wanted &= view.confidence > 0.5
    return Decision(wanted | highest_one(view.confidence, view.eligible))


UNDECIDED: list[tuple[Any, str]] = [
    # Each was a TypeError, an IndexError or a NotImplementedError, or was not found.
    (rule(lambda v: Decision(v.confidence)), "must return commit of kind bool and shape"),
    (rule(lambda v: Decision(commit=None)), "must return commit of kind bool .*, got None"),  # type: ignore[arg-type]
    (rule(lambda v: Decision(v.eligible[:, :2])), "must return commit of kind bool and shape"),
    (rule(lambda v: v.eligible), "must return a Decision, got a Tensor"),
    (plugin(Sampler, step=lambda self, view, state: Decision(view.eligible)), "must return the pa"),
    (plugin(Sampler, step=lambda self, view, state: None), "must return the pair"),
    (rule(lambda v: Decision(v.eligible), max_steps=lambda self, num_masks: None), "^max_steps of"),
    (rule(write), r"^step of Own\(\) must not write into view.masked or view.eligible"),
    (rule(lambda v: Decision(v.eligible), init=lambda self, view: [0]), "must be None, .* a list"),
    (rule(lambda v: Decision(v.eligible), scope="blok"), "^scope of .*, got 'blok'"),
    (rule(lambda v: Decision(v.eligible), needs={Fact.HAS_MASK}), "^needs of .* frozenset"),
    (rule(lambda v: Decision(v.eligible), gives=frozenset({"x"})), "^gives of .* frozenset"),
    (type("Own", (Sampler,), {"step": ConfidenceThreshold.step})(), "must be a frozen dataclass"),
    (ConfidenceThreshold, "got the class ConfidenceThreshold"),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "sentence"), UNDECIDED)
@pytest.mark.usefixtures("no_checks_of_types")
def test_a_rule_is_refused_with_the_sentence_of_a_decode(sampler: Any, sentence: str) -> None:
    for check in (check_rule, lambda rule: decode(HashModel(), [[1]], rule, gen_length=4)):
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            check(sampler)


def test_a_rule_that_looks_for_settled_tokens_among_eligible_ones_is_told() -> None:
    """It re-masked nothing, in silence: a token that `commit` settles is not eligible."""

    def step(self: Any, view: View, state: None) -> tuple[Decision, None]:
        commit = highest_one(view.confidence, view.eligible & view.masked)
        doubtful = view.confidence < 0.9
        return Decision(commit, remask=view.eligible & ~view.masked & doubtful), None

    with pytest.raises(AssertionError, match="no token is ever re-masked, because `commit`"):
        check_rule(plugin(RevisingSampler, step=step))
    check_rule(Wino(0.3))


def test_a_view_is_made_from_logits() -> None:
    logits = torch.tensor([[[0.0, 2.0], [3.0, 0.0]]])
    view = view_with(logits, torch.tensor([[True, False]]), gen_length=5)
    assert view.proposal[0, 0] == 1
    assert view.tokens.tolist() == [[2, 0]]
    assert view.num_left.tolist() == [4]

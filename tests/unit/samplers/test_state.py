"""A state whose rows cannot be taken is refused by name, at the step in which it appears."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from toys import DriftingModel

from dllm_decode import NoVerifier, SelfVerify, Verifier, decode
from samplers import CreditDecoding, Decision, Prophet, Sampler, View
from samplers.logits.statistics import highest_one
from samplers.state import put_state, take_state


class Pair(NamedTuple):
    first: Any
    second: Any = None


@dataclass(frozen=True)
class Remembering(Sampler):
    """Commits one token a step; its state is whatever the test makes."""

    make: Callable[[View, int], Any]

    def init(self, view: View) -> Any:
        return self.make(view, 0)

    def step(self, view: View, state: Any) -> tuple[Decision, Any]:
        return Decision(highest_one(view.confidence, view.eligible)), self.make(view, 1)

    def __repr__(self) -> str:
        return "Remembering()"


def zeros(view: View, *shape: int) -> Tensor:
    return torch.zeros(len(view.tokens), *shape)


REFUSED: dict[str, tuple[Callable[[View, int], Any], str]] = {
    "list": (lambda view, step: [zeros(view)], "got a list"),
    "number inside": (
        lambda view, step: Pair(zeros(view), Pair(3)),
        "got a int in its field 'first' in its field 'second'",
    ),
    "another axis first": (
        lambda view, step: Pair(zeros(view), torch.zeros(7, 3)),
        r"a tensor of shape \(7, 3\) for 3 rows in its field 'second'",
    ),
    "no axis": (lambda view, step: torch.tensor(0), r"a tensor of shape \(\)"),
    "None at first": (
        lambda view, step: zeros(view) if step else None,
        "must keep its kind, shapes and dtypes from step to step, got .*float32.* after .*None",
    ),
    "growing": (lambda view, step: zeros(view, 2 + step), "must keep its kind, shapes and dtypes"),
    "another dtype": (
        lambda view, step: zeros(view).double() if step else zeros(view),
        "must keep its kind, shapes and dtypes",
    ),
}


@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_whose_rows_cannot_be_taken_is_refused_by_name(
    kind: str, verifier: Verifier, wrapped: bool
) -> None:
    make, message = REFUSED[kind]
    sampler: Sampler = Remembering(make)
    if wrapped:
        sampler = Prophet(CreditDecoding(sampler), marker=(3, 4))
    with pytest.raises(RuntimeError, match=message) as raised:
        decode(DriftingModel(), [[1], [2], [3]], sampler, verifier=verifier, gen_length=6)
    assert "Remembering()" in str(raised.value)


def test_rows_are_taken_and_put_back_in_every_part() -> None:
    state = Pair(torch.arange(4), Pair(torch.arange(8).view(4, 2)))
    rows = torch.tensor([1, 3])
    part = take_state(state, rows)
    assert type(part) is Pair
    assert part.first.tolist() == [1, 3]
    assert part.second.first.tolist() == [[2, 3], [6, 7]]
    assert part.second.second is None
    negated = Pair(-part.first, Pair(-part.second.first))
    put = put_state(state, rows, negated)
    assert type(put) is Pair
    assert put.first.tolist() == [0, -1, 2, -3]
    assert put.second.first.tolist() == [[0, 1], [-2, -3], [4, 5], [-6, -7]]
    assert state.first.tolist() == [0, 1, 2, 3]

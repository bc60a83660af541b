"""One call of a model for several groups of rows; `property/test_fuzz_engine.py` has the law."""

from collections import Counter

import pytest
import torch
from pretended import Operations
from tiny_models import tiny
from torch import Tensor

from dllm_decode import ForwardInputs

MATRICES = ("mm", "addmm", "linear")


def groups_of(num_groups: int) -> list[ForwardInputs]:
    """Returns a group of two rows of nine columns and, if two are wanted, one of a row of four."""
    columns = [torch.arange(9).repeat(2, 1), torch.arange(4)[None]]
    return [ForwardInputs(part, part, part[:, 1:3]) for part in columns[:num_groups]]


def operations_of(num_groups: int) -> Counter[str]:
    names: list[str] = []
    with torch.no_grad(), Operations(lambda func, *_: names.append(func.overloadpacket.__name__)):
        tiny("llada").transformer.forward_groups(groups_of(num_groups))
    return Counter("attention" if "attention" in name else name for name in names)


def test_every_matrix_multiplies_the_columns_of_all_groups_at_once() -> None:
    one, two = operations_of(1), operations_of(2)
    assert sum(one[name] for name in MATRICES) == sum(two[name] for name in MATRICES) > 0
    assert two["attention"] == 2 * one["attention"] > 0


def test_a_single_group_alone_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model, compiled = tiny("llada"), list[ForwardInputs]()

    def forward(inputs: ForwardInputs) -> Tensor:
        compiled.append(inputs)
        return model._forward(inputs)

    monkeypatch.setattr(model, "_compiled", forward)
    for num_groups, num_compiled in ((2, 0), (1, 1)):
        model.predict_groups(groups_of(num_groups))
        assert len(compiled) == num_compiled

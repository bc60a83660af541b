"""One call of a model for several groups of rows; the laws are in `property/test_group_laws.py`."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended import Accelerator, contents
from tiny_models import MODELS, tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import HashModel

from dllm_decode.models import ForwardInputs, KVCache, MaskedTransformer
from dllm_decode.models.base import GroupPredictor, num_calls, predict_all
from dllm_decode.models.network.groups import join, split

MATRICES = ("mm", "addmm", "linear")


def groups_of(kv_cache: KVCache | None = None, *, device: str = "cpu") -> list[ForwardInputs]:
    """Two rows of nine columns, and one row of four."""
    made = []
    for rows, width in (([2, 0], 9), ([1], 4)):
        index = torch.tensor(rows, device=device)
        columns = torch.arange(width, device=device).expand(len(rows), -1)
        inputs = ForwardInputs(columns + 3 * index[:, None], columns, columns[:, 1:3])
        if kv_cache is not None:
            inputs = replace(inputs, kv_cache=kv_cache.first(12), slots=columns, rows=index)
        made.append(inputs)
    return made


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted)


class CallsOf:
    """Counts the forwards of a transformer by replacing its head."""

    def __init__(self, model: MaskedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls, self._head = 0, model.transformer.head
        monkeypatch.setattr(model.transformer, "head", self.head)

    def head(self, hidden: Tensor) -> Tensor:
        self.num_calls += 1
        return self._head(hidden)


def test_a_model_without_groups_is_called_once_for_each() -> None:
    model, groups = HashModel(), groups_of()
    assert not isinstance(model, GroupPredictor)
    assert num_calls(model, groups) == 2
    assert_same(predict_all(model, groups), [model.predict(group) for group in groups])


def test_a_model_with_groups_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, groups = tiny("llada"), groups_of()
    assert isinstance(model, GroupPredictor)
    expected = [model.predict(group) for group in groups]
    calls = CallsOf(model, monkeypatch)
    for number, count in ((2, 1), (1, 1), (0, 0)):
        calls.num_calls = 0
        assert_same(predict_all(model, groups[:number]), expected[:number])
        assert calls.num_calls == num_calls(model, groups[:number]) == count


def test_every_matrix_multiplies_the_columns_of_all_groups_at_once() -> None:
    model = tiny("llada")

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            seen["attention" if "attention" in name else name] += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for num_groups in (1, 2):
        seen = Counter[str]()
        with torch.no_grad(), Count():
            model.transformer.forward_groups(groups_of()[:num_groups])
        counts.append(seen)
    one, two = counts
    assert sum(one[name] for name in MATRICES) == sum(two[name] for name in MATRICES) > 0
    assert two["attention"] == 2 * one["attention"] > 0


def test_a_single_group_is_neither_joined_nor_split() -> None:
    part = torch.zeros(2, 3, 4)
    assert join([part]) is part
    assert split(part, [(2, 3)]) == [part]


def test_joined_groups_are_split_again() -> None:
    parts = [torch.randn(2, 3, 4), torch.randn(1, 5, 4), torch.randn(3, 1, 4)]
    joined = join(parts)
    assert joined.shape == (1, 14, 4)
    assert_same(split(joined, [(2, 3), (1, 5), (3, 1)]), parts)


def test_logits_of_a_group_may_be_changed_in_place() -> None:
    model = tiny("llada")
    first, second = model.predict_groups(groups_of())
    before = second.clone()
    first[:, :, model.mask_id] = -torch.inf
    assert torch.equal(second, before)
    assert not first.requires_grad


def test_weights_in_files_serve_groups(tmp_path: Path) -> None:
    plain, _ = load_model(MODELS / "llada")
    spread, _ = load_model(
        MODELS / "llada", device={"": "cpu", "layers.1": "disk"}, offload_folder=tmp_path
    )
    assert spread.transformer.route is not None
    found = spread.predict_groups(groups_of(spread.new_kv_cache(3, 12)))
    assert_same(found, plain.predict_groups(groups_of(plain.new_kv_cache(3, 12))))


class Runner:
    """Counts the forwards that would be replayed as graphs."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, run: Any, inputs: ForwardInputs, *, required: bool) -> Tensor:
        self.num_calls += 1
        return run(inputs)


def test_only_a_single_group_may_be_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runner = tiny("llada"), Runner()
    monkeypatch.setattr(model, "_active_runner", lambda: runner)
    model.predict_groups(groups_of())
    assert runner.num_calls == 0
    model.predict_groups(groups_of()[:1])
    assert runner.num_calls == 1


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_on_an_accelerator_groups_wait_for_nothing(family: str) -> None:
    here = tiny(family)
    expected = here.predict_groups(groups_of(here.new_kv_cache(3, 12)))
    with Accelerator() as accelerator:
        there, _ = load_model(MODELS / family, device="cuda", dtype=torch.float64)
        there.graphs = False
        groups = groups_of(there.new_kv_cache(3, 12), device="cuda")
        # Frequencies are copied to the device once.
        there.predict_groups(groups)
        accelerator.waits.clear()
        found = there.predict_groups(groups)
        assert not accelerator.waits
    assert_same([contents(part) for part in found], expected)

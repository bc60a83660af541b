"""One call of a model for several groups of rows; `property/test_fuzz_engine.py` has the law."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended import Operations
from tiny_models import MODELS, tiny
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor

from dllm_decode.models import ForwardInputs, KVCache

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


def operations_of(num_groups: int) -> Counter[str]:
    names: list[str] = []
    with torch.no_grad(), Operations(lambda func, *_: names.append(func.overloadpacket.__name__)):
        tiny("llada").transformer.forward_groups(groups_of()[:num_groups])
    return Counter("attention" if "attention" in name else name for name in names)


def test_every_matrix_multiplies_the_columns_of_all_groups_at_once() -> None:
    one, two = operations_of(1), operations_of(2)
    assert sum(one[name] for name in MATRICES) == sum(two[name] for name in MATRICES) > 0
    assert two["attention"] == 2 * one["attention"] > 0


def test_weights_in_files_serve_groups(tmp_path: Path) -> None:
    plain, _ = load_model(MODELS / "llada")
    spread, _ = load_model(
        MODELS / "llada", device={"": "cpu", "layers.1": "disk"}, offload_folder=tmp_path
    )
    assert spread.transformer.route is not None
    found = spread.predict_groups(groups_of(spread.new_kv_cache(3, 12)))
    assert_same(found, plain.predict_groups(groups_of(plain.new_kv_cache(3, 12))))


def test_only_a_single_group_may_be_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, replayed = tiny("llada"), list[ForwardInputs]()

    def runner(run: Any, inputs: ForwardInputs, *, required: bool) -> Tensor:
        replayed.append(inputs)
        return run(inputs)

    monkeypatch.setattr(model, "_active_runner", lambda: runner)
    for num_groups, num_replayed in ((2, 0), (1, 1)):
        model.predict_groups(groups_of()[:num_groups])
        assert len(replayed) == num_replayed

"""How many operations a step launches beside the model: each costs an accelerator microseconds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DualCache,
    ForwardInputs,
    FreeCache,
    MultiBlock,
    NoCache,
    PrefixCache,
    Sequential,
    SubBlocks,
    decode,
)
from samplers import ConfidenceThreshold, FixedSchedule, Sampler


class Counted(TorchDispatchMode):
    """Counts operations, those of a mask predictor apart."""

    def __init__(self) -> None:
        super().__init__()
        self.num_outside = 0
        self._inside = False

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.num_outside += not self._inside
        return operation(*args, **(kwargs or {}))

    def apart(
        self, predict: Callable[[ForwardInputs], torch.Tensor]
    ) -> Callable[[ForwardInputs], torch.Tensor]:
        def predicted(inputs: ForwardInputs) -> torch.Tensor:
            self._inside = True
            try:
                return predict(inputs)
            finally:
                self._inside = False

        return predicted


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize(
    "cache",
    [NoCache(), PrefixCache(), DualCache(), FreeCache()],
    ids=repr,
)
@pytest.mark.parametrize("sampler", [FixedSchedule(32), ConfidenceThreshold(1.0)], ids=repr)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_step_is_few_operations_beside_the_model(
    num_rows: int, sampler: Sampler, cache: CachePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views included. Once it was 180; most of what a step needs is the same in the whole block."""
    model, counted = tiny("llada"), Counted()
    monkeypatch.setattr(model, "predict", counted.apart(model.predict))
    prompts = [[3, 4, 5, *range(6, 6 + row)] for row in range(num_rows)]
    options: Any = {"gen_length": 64, "block_length": 32, "stop_at_eos": False, "cache": cache}
    with counted:
        out = decode(model, prompts, sampler, **options)
    assert out.forwards >= 60
    assert 40 < counted.num_outside / out.forwards < 135


@pytest.mark.parametrize(
    "blocks", [MultiBlock(32, 1.0, 1.0), AdaptiveBlocks((5,), 1.0), SubBlocks(32, 8)], ids=repr
)
def test_a_schedule_costs_few_operations_where_nothing_opens(
    blocks: BlockSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MultiBlock cost 75 a step: it decided what is open on the device, at every step."""
    model = tiny("llada")
    options: Any = {"gen_length": 64, "block_length": 32, "stop_at_eos": False}
    found = []
    for schedule in (Sequential(), blocks):
        counted = Counted()
        with monkeypatch.context() as patch, counted:
            patch.setattr(model, "predict", counted.apart(model.predict))
            out = decode(model, [[3, 4, 5]], ConfidenceThreshold(1.0), blocks=schedule, **options)
        assert out.forwards >= 60
        found.append(counted.num_outside / out.forwards)
    assert found[1] - found[0] < 12

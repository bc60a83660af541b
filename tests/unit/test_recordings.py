"""Forwards are recorded and played with the inputs of the present one, as often as pays."""

import copy
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from replayed import Recorder, forward, roomy
from spied import tiny
from torch.overrides import TorchFunctionMode

from dllm_decode import ForwardInputs, load_model
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.runner import GraphRunner


def test_a_recording_serves_callers_in_and_out_of_inference_mode() -> None:
    model = tiny("llada")
    replay = GraphRunner(model.predict, record=Recorder())
    columns = torch.arange(4)[None]
    inputs = ForwardInputs(tokens=torch.tensor([[5, 6, 7, 8]]), positions=columns, wanted=columns)
    for inference in (False, True, False, True, False):
        with torch.inference_mode(inference):
            logits = replay(inputs)
            logits.add_(1.0)
    assert replay.record.num_played == 4


def test_moved_weights_are_recorded_anew() -> None:
    model = load_model("mini")[0]
    before = model._graphs
    model.to(torch.float64)
    assert model._graphs is not before


def test_what_comes_out_is_not_overwritten_by_the_next_play() -> None:
    model = tiny("llada")
    replay = GraphRunner(model.predict, record=Recorder())
    columns = torch.arange(4)[None]
    inputs = ForwardInputs(tokens=torch.tensor([[5, 6, 7, 8]]), positions=columns, wanted=columns)
    found = [replay(replace(inputs, tokens=torch.tensor([[5, 6, 7, token]]))) for token in range(6)]
    for token, logits in enumerate(found):
        wanted = model.predict(replace(inputs, tokens=torch.tensor([[5, 6, 7, token]])))
        torch.testing.assert_close(logits, wanted)


def test_recordings_that_are_not_used_are_forgotten() -> None:
    replay = GraphRunner(tiny("llada").predict, record=Recorder(), max_recordings=2)
    for columns in (8, 16, 24, 8, 16, 24):
        for token in range(3):
            expected = replay.run(forward(columns, token=token))
            torch.testing.assert_close(replay(forward(columns, token=token)), expected)
    assert len(replay._recordings) == 2
    # The second of each three, and a third time it is played.
    assert replay.record.num_recorded == 6
    assert replay.record.num_played == 12


def test_the_recording_that_was_not_used_for_longest_goes_first() -> None:
    replay = GraphRunner(tiny("llada").predict, record=Recorder(), max_recordings=2)
    for columns in (8, 8, 16, 16, 8, 24, 24):
        replay(forward(columns))
    assert [one.static[0].shape[1] for one in replay._recordings.values()] == [8, 24]


def test_logits_that_take_too_much_are_forgotten() -> None:
    row = 8 * 512 * 8
    replay = GraphRunner(tiny("llada").predict, record=Recorder(), max_logits_bytes=3 * row)
    for num_rows in (1, 2, 4):
        for _ in range(2):
            replay(forward(8, num_rows=num_rows, token=0))
    # The smallest made room, and that was enough.
    assert [one.num_bytes for one in replay._recordings.values()] == [2 * row, 4 * row]
    assert replay.record.num_recorded == 3


def test_what_was_seen_once_is_forgotten_too() -> None:
    replay = GraphRunner(tiny("llada").predict, record=Recorder(), max_recordings=1)
    for rows in range(1, 6):
        for columns in range(8, 65, 8):
            replay(forward(columns, num_rows=rows))
    assert not replay.record.num_recorded
    assert len(replay._seen) == 16


def test_many_columns_run_as_they_are() -> None:
    calls: list[ForwardInputs] = []

    def run(inputs: ForwardInputs) -> torch.Tensor:
        calls.append(inputs)
        return torch.zeros(*inputs.wanted.shape, 3)

    replay = GraphRunner(run, record=Recorder(), max_columns=20)
    many, few = forward(7, num_rows=3), forward(5, num_rows=4)
    for inputs in (many, many, few, few):
        replay(inputs)
    assert calls[0] is calls[1] is many
    assert [call.tokens.shape for call in calls[2:]] == [(4, 8)] * 3
    assert replay.record.num_recorded == 1


class Refusing(Recorder):
    """Refuses forwards of so many columns."""

    def __init__(self, *num_columns: int) -> None:
        super().__init__()
        self.num_columns = num_columns
        self.refused: list[int] = []

    def __call__(self, run: Any, inputs: ForwardInputs) -> Any:
        width = inputs.tokens.shape[1]
        if width in self.num_columns:
            self.refused.append(width)
            raise RuntimeError(f"{width} columns cannot be captured.\nCompile with more.")
        return super().__call__(run, inputs)


def test_what_cannot_be_recorded_runs_as_ever() -> None:
    replay = GraphRunner(tiny("llada").predict, record=Refusing(8, 16))
    expected = {columns: replay.run(forward(columns)) for columns in (8, 16, 24)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [(columns, replay(forward(columns))) for _ in range(4) for columns in expected]
    for columns, logits in found:
        torch.testing.assert_close(logits, expected[columns])
    assert [str(warning.message) for warning in caught] == [
        "A forward cannot be captured as a CUDA graph (8 columns cannot be captured.), so it and "
        "others like it run without, which is slower. To try none, set model.graphs = False."
    ]
    assert replay.record.refused == [8, 16]
    assert replay.record.num_recorded == 1
    assert replay.record.num_played == 3


class Copies(TorchFunctionMode):
    """Counts copies into a tensor that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.num_copies = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_copies += func is torch.Tensor.copy_
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("num_columns", [8, 11])
def test_a_tensor_that_is_there_already_is_not_copied_again(num_columns: int) -> None:
    replay = GraphRunner(tiny("llada").predict, record=Recorder())
    base = forward(num_columns)
    copies = []
    for token in (1, 2, 2, 3):
        inputs = replace(base, tokens=base.tokens + token)
        with Copies() as counted:
            logits = replay(inputs)
        torch.testing.assert_close(logits, replay.run(inputs))
        copies.append(counted.num_copies)
    # The recorder's own, and the tokens; at first even these are there.
    assert copies == [0, 1, 2, 2]
    with Copies() as counted:
        again = replay(inputs)
        other = replay(forward(num_columns))
    torch.testing.assert_close(again, logits)
    torch.testing.assert_close(other, replay.run(forward(num_columns)))
    assert counted.num_copies == 1 + 4


def test_a_recording_does_not_keep_a_memory() -> None:
    model, keeper = tiny("llada"), KVBufferPool()
    replay = GraphRunner(model.predict, record=Recorder())
    kv_cache = roomy(model, 2, 20, keeper)
    inputs = replace(forward(8, num_rows=2), kv_cache=kv_cache, slots=slice(0, 8))
    for _ in range(3):
        replay(inputs)
    held = weakref.ref(kv_cache.whole)
    del kv_cache, inputs
    assert held() is None
    assert replay._last is not None
    assert replay._last.inputs.kv_cache is None
    assert replay.record.num_played == 2


def test_a_copied_model_has_recordings_of_its_own() -> None:
    model = load_model("mini")[0]
    model._graphs = GraphRunner(model._forward, record=Recorder())
    inputs = forward(8)
    before = model._graphs(inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.transformer.norm.weight.mul_(2.0)
    for _ in range(3):
        torch.testing.assert_close(other._graphs(inputs), other._forward(inputs))
        assert not torch.allclose(other._graphs(inputs), before)


def test_on_the_cpu_nothing_is_filled_up() -> None:
    model = load_model("mini")[0]
    kv_cache = model.new_kv_cache(2, 20)
    assert kv_cache.whole is None
    assert kv_cache.keys.shape[3] == 20
    inputs = replace(forward(7, num_rows=2), kv_cache=kv_cache, slots=slice(0, 7))
    for _ in range(3):
        model.predict(inputs)
    assert not model._graphs._seen
    assert (kv_cache.keys.abs().amax((0, 1, 2, 4)) > 0).tolist() == [True] * 7 + [False] * 13

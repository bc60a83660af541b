"""The back end for CPUs refuses work that no CUDA graph can hold."""

from typing import Any

import numpy as np
import pytest
import torch

from dllm_decode.models.graphs.backends import TracingBackend


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x > 0],
        lambda x: x + x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.index_put((x > 0,), x),
        lambda x: x * x.tolist()[0],
        lambda x: x * float(x.numpy()[0]),
        lambda x: x * float(np.asarray(x)[0]),
    ],
    ids=[
        "index by a mask", "item", "nonzero", "masked_select", "index_put by a mask", "tolist",
        "numpy", "asarray",
    ],
)  # fmt: skip
def test_work_that_waits_is_refused(work: Any) -> None:
    with pytest.raises(RuntimeError, match="A graph must not read values of tensors"):
        TracingBackend().record(lambda buffers: work(buffers["x"]), {"x": torch.ones(3)})


def test_a_replay_reads_and_writes_the_buffers() -> None:
    buffers = {"x": torch.ones(3), "y": torch.zeros(3)}
    replay = TracingBackend().record(lambda parts: parts["y"].add_(parts["x"]), buffers)
    buffers["y"].zero_()
    buffers["x"].fill_(5.0)
    assert replay().tolist() == buffers["y"].tolist() == [5.0] * 3


def test_a_value_that_python_reads_is_a_constant() -> None:
    size = [2]
    buffers = {"x": torch.ones(3)}
    replay = TracingBackend().record(lambda parts: parts["x"][: size[0]] * 2, buffers)
    size[0] = 1
    assert len(replay()) == 2

"""The pretended accelerator refuses what CUDA refuses, and counts what CUDA waits for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pretended import Accelerator, DeviceMixUpError, HostWaitError

X = torch.arange(12.0).view(3, 4)


def on_the_accelerator(work: Callable[[Any, Any], Any]) -> tuple[Any, dict[str, int]]:
    """Calls `work` with a tensor of each device; returns the result and the waits by kind."""
    with Accelerator() as accelerator:
        there = X.clone().to("cuda")
        accelerator.waits.clear()
        result = work(there, X.clone())
        return result, {name.split(" in ")[0]: n for name, n in accelerator.waits.items()}


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda x, y: x.sum().item(), "item"),
        (lambda x, y: x.tolist(), "tolist"),
        (lambda x, y: (x > 3).nonzero(), "nonzero"),
        (lambda x, y: torch.where(x > 3), "where"),
        (lambda x, y: x[x > 3], "index by a mask"),
        (lambda x, y: x[x.sum(-1).argmax()], "index by a scalar"),
        (lambda x, y: x[[0, 2]], "index by a list"),
        (lambda x, y: x[torch.tensor([1])], "index from the CPU"),
        (lambda x, y: x.cpu(), "copy to the host"),
        (lambda x, y: x.to("cpu", torch.float64), "copy to the host"),
        (lambda x, y: y.cuda(), "copy to the device"),
        (lambda x, y: y.to(x), "copy to the device"),
        (lambda x, y: x.copy_(y), "copy_"),
        (lambda x, y: x.__setitem__(0, y[0]), "copy_"),
        (lambda x, y: torch.tensor([1, 2], device="cuda"), "tensor"),
        (lambda x, y: x.new_tensor([1.0]), "new_tensor"),
        (lambda x, y: torch.isin(x, torch.arange(40.0, device="cuda")), "isin"),
        (lambda x, y: x.repeat_interleave(x[:, 0].long(), 0), "repeat_interleave"),
    ],
)
def test_what_the_host_waits_for_is_counted_and_no_part_of_a_graph(work: Any, reason: str) -> None:
    _, waits = on_the_accelerator(work)
    assert waits == {reason: 1}
    with Accelerator() as accelerator:
        there = X.clone().to("cuda")
        with accelerator.capturing(), pytest.raises(HostWaitError, match=reason):
            work(there, X.clone())


@pytest.mark.parametrize(
    "work",
    [
        lambda x, y: x + y,
        lambda x, y: y.add_(x),
        lambda x, y: torch.where(x > 3, x, y),
        lambda x, y: y[x[0].long()],
        lambda x, y: x.__setitem__(x[0, :1].long(), y[:1]),
        lambda x, y: torch.isin(x, torch.tensor([1.0])),
    ],
)
def test_tensors_of_two_devices_do_not_meet(work: Any) -> None:
    with pytest.raises(DeviceMixUpError):
        on_the_accelerator(work)

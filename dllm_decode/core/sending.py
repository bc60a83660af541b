"""Numbers that the host sends to the device."""

from typing import Any

import torch
from torch import Tensor


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Returns `torch.tensor(values)` on a device; with CUDA the host does not wait for it.

    `torch.tensor(values, device=device)` waits until the GPU has finished all queued work.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=device.type == "cuda")

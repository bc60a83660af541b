"""Float64 where a device has it, and what takes its place where it has none.

Apple's devices have no float64, nor have some of Intel's. What decides by float64 then either moves
a few numbers to the CPU, which changes no token, or is rounded to float32; who does says so.
"""

from functools import cache

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@cache
def has_float64(device: torch.device) -> bool:
    """Says whether a device computes in float64."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def widest(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 for a device that has no wider type."""
    return torch.float64 if has_float64(device) else torch.float32


def in_float64(values: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Converts to float64: on the same device if it has that, else on the CPU.

    The caller moves what follows from it back to the device of `values`.
    """
    return values.double() if has_float64(values.device) else values.cpu().double()

"""Float64 on devices that have it, else float64 on the CPU or float32.

Apple's devices and some of Intel's have no float64. Rules that decide by float64 then either move a
few numbers to the CPU, which changes no token, or use float32, which their documentation says.
"""

from functools import cache

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@cache
def has_float64(device: torch.device) -> bool:
    """Returns whether a device computes in float64."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def widest(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 for a device that has no wider type."""
    return torch.float64 if has_float64(device) else torch.float32


def in_float64(values: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Converts to float64: on the same device if that has float64, else on the CPU.

    The caller moves results back to the device of `values`.
    """
    return values.double() if has_float64(values.device) else values.cpu().double()

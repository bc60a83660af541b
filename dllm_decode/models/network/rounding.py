"""Compares two computations of the same numbers."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def disagreement(
    found: Float[Tensor, "*found"],
    expected: Float[Tensor, "*shape"],
    tolerances: Mapping[torch.dtype, float],
    where: Bool[Tensor, "*shape"] | bool = True,
) -> tuple[float, float]:
    """Returns the greatest difference, and the greatest that rounding explains.

    Equal infinities and two NaN agree.

    Args:
        found: Compared with `expected`; other shapes never agree.
        expected: The numbers that are right.
        tolerances: By dtype, as a share of the largest finite number compared, or of 1.
        where: Numbers that count.
    """
    if found.shape != expected.shape:
        return torch.inf, 0.0
    if not expected.numel():
        return 0.0, 0.0
    wide = torch.promote_types(expected.dtype, torch.float32)
    got, wanted = found.to(wide), expected.to(wide)
    ignored = ~torch.as_tensor(where, device=wanted.device)
    same = (got == wanted) | (got.isnan() & wanted.isnan()) | ignored
    gaps = (got - wanted).masked_fill(same, 0.0).abs().nan_to_num(torch.inf)
    sizes = wanted.abs().nan_to_num(0.0, 0.0, 0.0).masked_fill(ignored, 0.0)
    return float(gaps.amax()), tolerances[expected.dtype] * max(1.0, float(sizes.amax()))

"""Ends a training whose numbers have become infinite or NaN."""

from collections.abc import Sequence

import torch
from torch import Tensor


class NotFiniteError(RuntimeError):
    """The loss or a weight of a training has become infinite or NaN."""


def with_finite_check(name: str, tensors: Sequence[Tensor], step: int) -> None:
    """Checks the numbers of a training; waits for the device once.

    Args:
        name: What the tensors are, for the message.
        tensors: On one device.
        step: Optimiser steps done.

    Raises:
        NotFiniteError: If a number is infinite or NaN.
    """
    if torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
        return
    wrong = next(tensor for tensor in tensors if not tensor.isfinite().all())
    found = wrong[~wrong.isfinite()].flatten()[0].item()
    raise NotFiniteError(
        f"{name} must be finite, got {found} at step {step}; lower the learning rates."
    )

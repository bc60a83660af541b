"""Options that may differ from row to row, as the draws of all rows read them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send
from samplers.logits.float64 import widest
from samplers.logits.truncation import Truncation


def truncation_of(rows: Sequence[Row], device: torch.device) -> Truncation | None:
    """Returns how the rows' logits are truncated before samplers see them; `None`: not at all."""
    configs = [row.config for row in rows]
    if not any(c.is_tempered for c in configs):
        return None
    # A temperature of 0 changes no logits.
    settings = [(c.temperature if c.is_tempered else 0.0, c.top_p, c.top_k) for c in configs]
    if len(set(settings)) == 1:
        return Truncation(*settings[0])
    temperatures, shares, counts = zip(*settings, strict=True)
    return Truncation(
        _per_row(temperatures, device),
        _per_row(shares, device),
        send(counts, device),
    )


def temperature_of(rows: Sequence[Row], device: torch.device) -> float | Float[Tensor, " B"]:
    """Returns the temperature of draws; tempered logits are already divided by the temperature."""
    values = []
    for config in (row.config for row in rows):
        is_divided = config.is_tempered and config.temperature > 0.0
        values.append(1.0 if is_divided else float(config.temperature))
    return values[0] if len(set(values)) == 1 else _per_row(values, device)


def _per_row(values: Sequence[float], device: torch.device) -> Float[Tensor, " B"]:
    """Returns one number for each row as a tensor, in float64 if the device has it."""
    return send(values, device, widest(device))

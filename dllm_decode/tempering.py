"""The distributions that rows draw from, each with options of its own."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.rows import Row
from dllm_decode.decoder import Decoder
from samplers.logits.truncation import Truncation


def temperature_of(
    decoder: Decoder, rows: Sequence[Row], device: torch.device
) -> float | Float[Tensor, " B"]:
    """Returns the temperature of draws; truncated logits are already divided by the temperature."""
    values = [row.request.temperature for row in rows]
    if any(_is_tempered(decoder, row) for row in rows):
        values = [
            float(value > 0.0) if _is_tempered(decoder, row) else value
            for value, row in zip(values, rows, strict=True)
        ]
    return values[0] if len(set(values)) == 1 else _floats(values, device)


def truncation_of(decoder: Decoder, rows: Sequence[Row], device: torch.device) -> Truncation | None:
    """Returns how the rows' logits are truncated before samplers see them; `None`: not at all."""
    is_tempered = [_is_tempered(decoder, row) for row in rows]
    if not any(is_tempered):
        return None
    # A row that is not truncated keeps its logits, because a temperature of 0 changes none.
    requests = [row.request for row in rows]
    pairs = zip(requests, is_tempered, strict=True)
    temperatures = [request.temperature if found else 0.0 for request, found in pairs]
    shares, counts = [r.top_p for r in requests], [r.top_k for r in requests]
    same = len({*zip(temperatures, shares, counts, strict=True)}) == 1
    if same:
        return Truncation(temperatures[0], shares[0], counts[0])
    return Truncation(
        _floats(temperatures, device),
        _floats(shares, device),
        torch.tensor(counts, device=device),
    )


def _is_tempered(decoder: Decoder, row: Row) -> bool:
    request = row.request
    is_cut = request.top_p < 1.0 or request.top_k > 0
    return is_cut or decoder.config.confidence_from == "tempered"


def _floats(values: Sequence[float], device: torch.device) -> Float[Tensor, " B"]:
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.tensor(values, dtype=dtype, device=device)

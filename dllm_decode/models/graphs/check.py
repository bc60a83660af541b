"""Compares a captured forward with the same forward run eagerly."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dllm_decode.models.base import ForwardInputs
from dllm_decode.models.graphs.capture import Replay, Run
from dllm_decode.models.network.rounding import disagreement

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
"""Largest difference that is put down to rounding, as a share of the largest number compared."""


class DisagreementError(RuntimeError):
    """A replay did not compute what the forward computes."""


def check_replay(replay: Replay, run: Run, inputs: ForwardInputs) -> Float[Tensor, "B W V"]:
    """Runs a forward eagerly, then replays its graph, and returns the eager logits.

    What the eager forward stored is zeroed in between, so that a graph that stores nothing, or
    stores elsewhere, is found. Afterwards the cache holds what the eager forward stored.

    Args:
        replay: Of the captured forward.
        run: The forward.
        inputs: The tensors that the graph reads, filled with those of a real forward.

    Raises:
        DisagreementError: If logits, keys or values differ by more than rounding.
    """
    assert inputs.kv_cache is not None
    assert isinstance(inputs.slots, Tensor)
    buffers, slots = inputs.kv_cache.buffers, inputs.slots
    rows = torch.arange(len(slots), device=slots.device)[:, None]

    def stored() -> list[Float[Tensor, "B Q N H D"]]:
        return [buffer[:, rows, :, slots] for buffer in buffers]

    expected = run(inputs).clone()
    by_run = stored()
    for buffer in buffers:
        buffer[:, rows, :, slots] = 0.0
    logits = replay()
    by_replay = stored()
    for buffer, part in zip(buffers, by_run, strict=True):
        buffer[:, rows, :, slots] = part
    # Padding columns share the spare slot, and any of them may be the last to write there.
    real = slots > 0
    _compare("logit", logits, expected, real.gather(1, inputs.wanted))
    for found, wanted in zip(by_replay, by_run, strict=True):
        _compare("stored key or value", found, wanted, real)
    return expected


def _compare(
    name: str,
    found: Float[Tensor, "B Q *rest"],
    expected: Float[Tensor, "B Q *rest"],
    real: Bool[Tensor, "B Q"],
) -> None:
    shown = real.reshape(*real.shape, *[1] * (found.dim() - 2)).expand_as(found)
    difference, allowed = disagreement(found, expected, TOLERANCES, shown)
    if difference > allowed:
        raise DisagreementError(
            f"a {name} of its first replay differs by {difference:.2g} from the same forward "
            f"without a graph, where {allowed:.2g} is put down to rounding"
        )

"""Measures the cost of a column of a target's forward, which `Tree` compares with a node's gain."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from dllm_decode.core.model import ForwardInputs, MaskPredictor
from dllm_decode.models.targets.causal import CausalTarget

# Few and many columns, both multiples of the step to which readings are padded.
_FEW, _MANY = 16, 80


@torch.inference_mode()
def measure_column_cost(
    model: MaskPredictor,
    target: CausalTarget,
    prompt: Sequence[int],
    *,
    gen_length: int,
    num_forwards: int = 1,
    num_runs: int = 9,
) -> float:
    """Measures the `column_cost` of `Tree`: the price of a node as a share of a bare round.

    A bare round is one forward of the target over few columns, and the forwards of the mask
    predictor that a draft is made from. Medians of several runs, in turn.

    Args:
        model: The mask predictor.
        target: The target.
        prompt: Token ids of a typical prompt.
        gen_length: Masks after the prompt.
        num_forwards: Forwards of the mask predictor that a draft is made from.
        num_runs: Runs of each forward.
    """
    device = target.device
    text = torch.tensor([prompt], device=device)
    past = target.read(
        target.start(1), text, torch.tensor([text.shape[1]], device=device), num_logits=1
    ).keep(torch.tensor([text.shape[1]], device=device))
    canvas = torch.tensor([[*prompt, *[model.mask_id] * gen_length]], device=model.device)
    columns = torch.arange(canvas.shape[1], device=model.device)[None]
    inputs = ForwardInputs(tokens=canvas, positions=columns, wanted=columns[:, len(prompt) :])

    def read(num_columns: int) -> None:
        tokens = text[:, :1].expand(-1, num_columns)
        root = torch.zeros(1, dtype=torch.long, device=device)
        parents = torch.full((1, num_columns - 1), -1, device=device)
        target.read(
            past, tokens, root + num_columns, num_logits=num_columns, first_logits=root,
            parents=parents,
        )  # fmt: skip

    work: list[Callable[[], object]] = [
        lambda: read(_FEW), lambda: read(_MANY), lambda: model.predict(inputs)
    ]  # fmt: skip
    runs = [[_seconds(each, device) for each in work] for _ in range(num_runs + 1)][1:]
    few_s, many_s, draft_s = (median(run[index] for run in runs) for index in range(len(work)))
    column_s = max(0.0, many_s - few_s) / (_MANY - _FEW)
    return column_s / (few_s + num_forwards * draft_s)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started

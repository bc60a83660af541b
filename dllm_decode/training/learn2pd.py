"""Trains the filter of `samplers.Learn2PD`: which proposals of a block are final."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.core.files import new_file
from dllm_decode.models.loading.weights import write_weights
from dllm_decode.training.filter_examples import FilterExamples
from dllm_decode.training.loop import require_finite
from samplers.checks import require_count, require_integer, require_positive
from samplers.learn2pd import new_network

LEAST_PROMPTS = 10
"""The fewest prompts that `split` takes: a tenth of them must be at least one."""
ACTIVATION = "relu"


class Splits(NamedTuple):
    """Examples by purpose; no prompt is in both."""

    train: FilterExamples
    val: FilterExamples


def split(examples: FilterExamples, seed: int) -> Splits:
    """Splits `LEAST_PROMPTS` prompts or more: nine tenths to train, a tenth to validate."""
    names = examples.prompts.unique()
    if len(names) < LEAST_PROMPTS:
        raise ValueError(
            f"There must be at least {LEAST_PROMPTS} prompts, got {len(names)}; collect more."
        )
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    is_val = torch.isin(examples.prompts, order[: len(names) // 10])
    return Splits(examples.where(~is_val), examples.where(is_val))


@dataclass(frozen=True)
class FilterSettings:
    """How a filter is trained.

    Source: the authors' training notebook of Learn2PD (AdamW, 0.003, the whole set at once, 40,000
    steps). Differs: fewer steps, and the weights of the lowest validation loss are kept.

    Attributes:
        hidden_sizes: Units of each hidden layer.
        num_steps: Updates, each on all examples, at least 1.
        learning_rate: Of AdamW, above 0 and finite.
        seed: Of the initial weights, in signed 64 bits.
    """

    hidden_sizes: tuple[int, ...] = (32,)
    num_steps: int = 5_000
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("num_steps", self.num_steps, 1)
        require_positive("learning_rate", self.learning_rate)
        require_integer("seed", self.seed, least=-(2**63), most=2**63 - 1)


def train_filter(
    train_on: FilterExamples,
    val: FilterExamples,
    settings: FilterSettings,
    *,
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> nn.Sequential:
    """Fits a filter by binary cross entropy and returns that of the lowest validation loss.

    The result depends on the arguments alone.

    Args:
        train_on: Examples that are fitted.
        val: Examples that choose among the updates, a hundred times.
        settings: How the filter is trained.
        observe: Called with the number of updates and the validation loss when the latter is
            computed.

    Raises:
        RuntimeError: If the loss is not finite.
    """
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = new_network(train_on.confidences.shape[1], settings.hidden_sizes, ACTIVATION)
    network.to(train_on.confidences.device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate)
    best, least = copy.deepcopy(network), math.inf
    for step in range(1, settings.num_steps + 1):
        optimiser.zero_grad()
        _loss(network, train_on).backward()
        optimiser.step()
        if step % max(1, settings.num_steps // 100) == 0 or step == settings.num_steps:
            with torch.no_grad():
                loss = _loss(network, val)
            require_finite("The loss", [loss], step)
            observe(step, loss.item())
            if loss.item() < least:
                least = loss.item()
                best.load_state_dict(network.state_dict())
    return best


def _loss(network: nn.Module, examples: FilterExamples) -> Float[Tensor, ""]:
    """Returns the mean over all positions of the blocks, committed ones included."""
    logits = network(examples.confidences)
    return F.binary_cross_entropy_with_logits(logits, examples.final.float())


def save_filter(
    network: nn.Module,
    path: Path,
    *,
    model: str,
    settings: FilterSettings,
    threshold: float,
    fingerprint: str = "",
) -> None:
    """Writes a filter, and how it was trained, as a safetensors file that `Learn2PD` reads.

    Args:
        network: The filter.
        path: The file to write.
        model: Name of the model that the filter was trained on.
        settings: How the filter was trained.
        threshold: Threshold of the measured results, for the reader's information.
        fingerprint: `fingerprint_of(model)`; no other model is accepted. "": the name decides.
    """
    weights = {name: value.float().contiguous() for name, value in network.state_dict().items()}
    block_length = next(iter(weights.values())).shape[1]
    metadata = {
        "model": model,
        "fingerprint": fingerprint,
        "block_length": str(block_length),
        "hidden_sizes": json.dumps(settings.hidden_sizes),
        "activation": ACTIVATION,
        "threshold": str(threshold),
        "settings": repr(settings),
    }
    with new_file(path) as partial:
        write_weights(partial, weights, metadata)

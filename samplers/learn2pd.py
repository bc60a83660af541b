"""Unmasking by a learned filter (Learn2PD)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Bool
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from samplers.base import ASSETS, Decision, Sampler
from samplers.checks import Probability, require_choice
from samplers.facts import Fact
from samplers.logits.float64 import in_float64
from samplers.logits.statistics import highest_one
from samplers.view import View

MAX_FILTER_BYTES = 2**28
ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


@dataclass(frozen=True)
class Learn2PD(Sampler[Bool[Tensor, "B W"]]):
    """Commits the positions whose proposal a small network takes for final.

    The network reads the probability of the most likely token at every position of the block, also
    at committed ones, and scores each position; a short last block is padded with 1. Eligible
    positions whose score exceeds `threshold` are committed, and in any case the most confident one.
    The state marks the columns that pad a short last block.

    The filter is a safetensors file that says for which model and block length it was trained;
    `decode` refuses any other. A model is known by the fingerprint of its weights, so that a copy
    of the model may have any name, or by its name if the file has no fingerprint. The file is read
    on first use.

    Source: Bao et al. 2025, "Learning to Parallel: Accelerating Diffusion Large Language Models via
    Learnable Parallel Decoding", https://arxiv.org/abs/2509.25188. The paper's end-of-text
    prediction is `EoTP`, for any sampler, with `truncate_at_eos` of `decode`.

    Differs: The paper names neither the padding of a short block nor the activation: here 1 and
    ReLU. The paper also commits as many positions as the fixed schedule would, but one in its
    experiments, as here. At a temperature above 0 scores still describe the most
    likely token.

    Attributes:
        filter: An embedded filter's name, or the path of a file that `save_filter` wrote.
        threshold: Probability of being final, in [0, 1], that a score must exceed.

    Raises:
        ValueError: If the threshold is not a probability or, at the start of `decode`, the file is
            not a filter, or a filter for another model or block length.
        FileNotFoundError: If, at the start of `decode`, there is no such filter.
    """

    filter: str = "mini"
    threshold: Probability = 0.96

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.filter, str):
            raise ValueError(f"filter must be a name or a path, got {self.filter!r}.")

    @cached_property
    def loaded(self) -> "Filter":
        """The filter, read on first use."""
        return load_filter(self.filter)

    @property
    def needs(self) -> frozenset[Fact]:
        # The network was trained on whole blocks, with the confidence at committed positions.
        return super().needs | {Fact.LOGITS_OF_COMMITTED, Fact.WHOLE_BLOCKS}

    @property
    def files(self) -> tuple[Path, ...]:
        return (_filter_file(self.filter),)

    def check_model(self, *, model_name: str, fingerprint: str) -> None:
        trained = self.loaded
        wanted, got = trained.fingerprint, fingerprint
        if not trained.fingerprint:
            # Older files have none.
            wanted, got = trained.model, model_name
        if wanted == got:
            return
        hint = ", another one by its weights" if model_name == trained.model else ""
        raise ValueError(
            f"The model must be {trained.model!r}, for which the filter {self.filter!r} was "
            f"trained, got {model_name!r}{hint}. Train a filter for this one."
        )

    def check(self, *, model_name: str, gen_length: int, block_length: int) -> None:
        trained = self.loaded
        if trained.block_length != block_length:
            raise ValueError(
                f"block_length must be {trained.block_length}, for which the filter "
                f"{self.filter!r} was trained, got {block_length}. Decode with "
                f"block_length={trained.block_length}, or train a filter for this one."
            )

    def init(self, view: View) -> Bool[Tensor, "B W"]:
        return view.after_answer & ~view.masked

    def step(self, view: View, state: Bool[Tensor, "B W"]) -> tuple[Decision, Bool[Tensor, "B W"]]:
        trained = self.loaded
        confidences = in_float64(view.probability(view.most_likely).masked_fill(state, 1.0))
        missing = trained.block_length - confidences.shape[1]
        network = trained.network.to(confidences.device)
        scores = network(functional.pad(confidences, (0, missing), value=1.0)).sigmoid()
        passes = scores[:, : confidences.shape[1]] > self.threshold
        accepted = view.eligible & passes.to(view.eligible.device)
        return Decision(commit=accepted | highest_one(view.confidence, view.eligible)), state


@dataclass(frozen=True)
class Filter:
    """A network that scores the positions of a block, for one model and block length.

    Attributes:
        network: Maps the block's confidences to one logit a position, in float64.
        block_length: Positions of a block, in tokens.
        model: Name of the model.
        fingerprint: Fingerprint of the model; "" in files that have none.
    """

    network: nn.Module
    block_length: int
    model: str
    fingerprint: str


def new_network(block_length: int, hidden_sizes: tuple[int, ...], activation: str) -> nn.Sequential:
    """Builds an untrained filter network.

    Args:
        block_length: Number of inputs and of outputs.
        hidden_sizes: Units of each hidden layer.
        activation: Activation between layers: relu, tanh or gelu.

    Raises:
        ValueError: If the activation is not one of these.
    """
    require_choice("activation", activation, tuple(ACTIVATIONS))
    sizes = (block_length, *hidden_sizes, block_length)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def _embedded_filters() -> tuple[str, ...]:
    """Returns the names of the filters that are part of this package."""
    return tuple(sorted(path.stem.removeprefix("learn2pd-") for path in ASSETS.glob("learn2pd-*")))


def _filter_file(source: str) -> Path:
    """Returns the file of an embedded filter, or the file at a path.

    Raises:
        FileNotFoundError: If there is neither, or the path is no regular file, such as a device.
        ValueError: If the file is larger than a filter.
    """
    names = _embedded_filters()
    path = ASSETS / f"learn2pd-{source}.safetensors" if source in names else Path(source)
    if not path.is_file():
        listed = ", ".join(names) or "none is installed"
        raise FileNotFoundError(
            f"filter must be a file or an embedded name ({listed}), got {source!r}. Train one "
            "with dllm-decode train-filter."
        )
    size_bytes = path.stat().st_size
    if size_bytes > MAX_FILTER_BYTES:
        raise ValueError(
            f"filter must be a file of at most {MAX_FILTER_BYTES:,} bytes, got {source!r} of "
            f"{size_bytes:,}. Name a file that dllm-decode train-filter wrote."
        )
    return path


def load_filter(source: str) -> Filter:
    """Reads a filter file.

    Args:
        source: An embedded filter's name, or a path.

    Raises:
        FileNotFoundError: If there is neither, or the path is no regular file.
        ValueError: If the file is not a filter.
    """
    path = _filter_file(source)
    try:
        return _read_filter(path)
    except (KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"filter must be a file that save_filter wrote, got {source!r} ({error}). "
            "Train one with dllm-decode train-filter."
        ) from error


def _read_filter(path: Path) -> Filter:
    with safe_open(path, framework="pt") as file:
        settings = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    if settings is None:
        raise ValueError("It has no metadata.")
    block_length = int(settings["block_length"])
    hidden_sizes = tuple(json.loads(settings["hidden_sizes"]))
    # Sizes without weights in the file are refused before they take memory.
    with torch.device("meta"):
        network = new_network(block_length, hidden_sizes, settings["activation"])
    network.load_state_dict(weights, assign=True)
    return Filter(
        network.double().requires_grad_(False),
        block_length,
        settings["model"],
        settings.get("fingerprint", ""),
    )

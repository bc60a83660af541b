"""Trains the filter of `samplers.Learn2PD`: which proposals of a block are final."""

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.observers import StepEvent
from dllm_decode.loop import decode
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig, require_integer
from dllm_decode.training.checkpoints import Progress
from dllm_decode.training.examples import Objective, Part, Source
from dllm_decode.training.loop import Report, Settings, require_finite, train
from samplers import Decision, FixedSchedule, Sampler, View
from samplers.checks import require_count, require_positive
from samplers.facts import Fact
from samplers.learn2pd import new_network
from samplers.logits.noise import row_keys

_BLOCKS = ("confidences", "final", "masked")
_DTYPES = {
    "confidences": torch.float32, "final": torch.bool, "masked": torch.bool, "prompts": torch.long
}  # fmt: skip
_ANEW = "remove the file, and the same command makes it anew."

LEAST_PROMPTS = 10
"""The fewest prompts that `split` takes: a tenth of them must be at least one."""


@dataclass(frozen=True)
class FilterExamples:
    """One example a forward: a block's confidences, and which proposals were final.

    Attributes:
        confidences: Probability of the most likely token at each position; 1 after a short block.
        final: Whether that token is the reference's; true after a short block.
        masked: Positions that held [MASK].
        prompts: Index of the prompt an example comes from.
    """

    confidences: Float[Tensor, "N K"]
    final: Bool[Tensor, "N K"]
    masked: Bool[Tensor, "N K"]
    prompts: Int[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.prompts)

    def where(self, keep: Bool[Tensor, " N"]) -> "FilterExamples":
        """Returns some of the examples."""
        return FilterExamples(**{name: values[keep] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Splits:
    """Examples by purpose; no prompt is in two of them."""

    train: FilterExamples
    val: FilterExamples
    test: FilterExamples


def collect_examples(
    model: MaskPredictor,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    cache: CachePolicy = NoCache(),
    first_prompt: int = 0,
) -> FilterExamples:
    """Watches an oracle decode: it commits every proposal that agrees with a reference answer.

    The reference is decoded one token a step, the most confident first. Then each block is decoded
    again: every forward gives one example, and all masked positions whose most likely token is the
    reference's are committed. When none is, the block's rest is copied from the reference.

    Source: Bao et al. 2025, "Learning to Parallel", https://arxiv.org/abs/2509.25188, the extremely
    greedy parallel strategy, and the authors' generate_training_data.py.

    Differs: The forward that shows a stall is not run twice. With `stop_at_eos` what lies behind
    the end of an answer gives no examples.

    Args:
        model: The model that the filter is for.
        prompts: Token ids, one sequence per row; one batch.
        config: How answers are decoded: `block_length` are the inputs of the filter,
            `truncate_at_eos` is the paper's end-of-text prediction.
        cache: As in `decode`. Where it commits a block's first token by itself, so does the oracle.
        first_prompt: Index of the first prompt.
    """
    assert config.block_length is not None
    out = decode(model, prompts, FixedSchedule(config.block_length), cache=cache, config=config)
    reference = _Reference(out.tokens.to(model.device))
    collected: list[FilterExamples] = []

    def collect(event: StepEvent) -> None:
        prompts = (event.requests + first_prompt).cpu()
        collected.append(_examples(event, reference.part(event.view), prompts))

    oracle = _Oracle(reference)
    decode(model, prompts, oracle, cache=cache, config=config, observers=[collect])
    return join(collected)


def join(parts: Sequence[FilterExamples]) -> FilterExamples:
    """Puts examples together."""
    return FilterExamples(
        **{name: torch.cat([vars(part)[name] for part in parts]) for name in _DTYPES}
    )


def save_examples(examples: FilterExamples, path: Path) -> None:
    """Writes examples; the file appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(vars(examples), partial)
    partial.replace(path)


def load_examples(path: Path) -> FilterExamples:
    """Reads what `save_examples` wrote; ValueError if it is damaged, or something else."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} must be a whole safetensors file, got {error}; {_ANEW}") from None
    dtypes = {name: tensor.dtype for name, tensor in found.items()}
    sizes = {tuple(found[name].shape) for name in _BLOCKS if name in found}
    lengths = {len(found[name]) for name in _DTYPES if name in found and found[name].ndim}
    if dtypes != _DTYPES or len(sizes) != 1 or len(lengths) != 1 or found["prompts"].ndim != 1:
        shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
        raise ValueError(f"{path} must hold examples of a filter, got {shapes}; {_ANEW}")
    return FilterExamples(**found)


def split(examples: FilterExamples, seed: int) -> Splits:
    """Splits 80 % of `LEAST_PROMPTS` prompts or more to train, 10 % each to validate and test."""
    names = examples.prompts.unique()
    if len(names) < LEAST_PROMPTS:
        raise ValueError(
            f"There must be at least {LEAST_PROMPTS} prompts, got {len(names)}; collect more."
        )
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    tenth = len(names) // 10
    val, test = order[:tenth], order[tenth : 2 * tenth]
    in_val, in_test = torch.isin(examples.prompts, val), torch.isin(examples.prompts, test)
    return Splits(
        examples.where(~in_val & ~in_test), examples.where(in_val), examples.where(in_test)
    )


@dataclass(frozen=True, eq=False)
class _Reference:
    """The answers that the oracle knows, one row a prompt of the decode."""

    answers: Int[Tensor, "N G"]

    def part(self, view: View) -> Int[Tensor, "B W"]:
        """Returns the tokens of a view's columns.

        Columns before the answer have their own. There is no reference for those after the answer,
        which fill up the last block of a block-causal model: the most likely token is taken there.
        """
        assert view.noise_keys is not None
        keys = row_keys(0, torch.arange(len(self.answers), device=view.noise_keys.device))
        rows = (view.noise_keys[:, None] == keys).long().argmax(-1)
        places = view.positions.clamp(0, self.answers.shape[1] - 1)
        known = torch.where(view.positions < 0, view.tokens, self.answers[rows].gather(1, places))
        return torch.where(view.after_answer, view.most_likely, known)


@dataclass(frozen=True, eq=False)
class _Oracle(Sampler[None]):
    """Commits every proposal that agrees with a reference, or all of the reference if none does."""

    reference: _Reference

    @property
    def needs(self) -> frozenset[Fact]:
        # As of the filter that learns from the examples.
        return super().needs | {Fact.LOGITS_OF_COMMITTED, Fact.WHOLE_BLOCKS}

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        wanted = self.reference.part(view)
        right = view.eligible & (view.most_likely == wanted)
        has_stalled = ~right.any(-1, keepdim=True)
        return Decision(torch.where(has_stalled, view.eligible, right), wanted), state


def _examples(
    event: StepEvent, wanted: Int[Tensor, "B W"], prompts: Int[Tensor, " B"]
) -> FilterExamples:
    view = event.view
    after_end = view.positions >= (event.before.ends - event.before.prompt_lengths)[:, None]
    confidences = view.probability(view.most_likely).float()
    return FilterExamples(
        confidences.masked_fill(after_end, 1.0).cpu(),
        ((view.most_likely == wanted) | after_end).cpu(),
        view.masked.cpu(),
        prompts,
    )


Counted = Literal["all", "masked"]


@dataclass(frozen=True)
class FilterSettings:
    """How a filter is trained.

    Source: the authors' training notebook of Learn2PD (AdamW, 0.003, the whole set at once, 40,000
    steps). Differs: fewer steps, and the weights of the lowest validation loss are kept.

    Attributes:
        hidden_sizes: Units of each hidden layer.
        activation: Between layers: relu, tanh or gelu.
        num_steps: Updates, each on all examples, at least 1.
        learning_rate: Of AdamW, above 0 and finite.
        counted: Positions in the loss: all of the block as in the paper, or those still masked.
        seed: Of the initial weights, in signed 64 bits.
    """

    hidden_sizes: tuple[int, ...] = (32,)
    activation: str = "relu"
    num_steps: int = 5_000
    learning_rate: float = 3e-3
    counted: Counted = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("num_steps", self.num_steps, 1)
        require_positive("learning_rate", self.learning_rate)
        require_integer("seed", self.seed, least=-(2**63), most=2**63 - 1)


@dataclass(frozen=True)
class Acceptance:
    """What a rule accepts on held-out blocks, among masked positions.

    Attributes:
        precision: Share of the accepted proposals that are final; 1 if none is accepted.
        recall: Share of the final proposals that are accepted.
    """

    precision: float
    recall: float


class _FilterLoss(Objective[FilterExamples]):
    """Binary cross entropy of a filter, and the weights that were best."""

    def __init__(self, network: nn.Sequential, counted: Counted) -> None:
        self.network, self.best = network, copy.deepcopy(network)
        self.model = nn.ModuleDict({"network": network, "best": self.best})
        self._counted = counted

    def loss(self, batch: FilterExamples, generator: torch.Generator) -> Float[Tensor, ""]:
        losses = functional.binary_cross_entropy_with_logits(
            self.network(batch.confidences), batch.final.float(), reduction="none"
        )
        if self._counted == "all":
            return losses.mean()
        return (losses * batch.masked).sum() / batch.masked.sum().clamp(min=1)


@dataclass(frozen=True)
class _Whole(Source[FilterExamples]):
    """All examples in every step, which counts as one sample."""

    examples: FilterExamples

    def parts(self, step: int, rank: int, world_size: int) -> list[Part[FilterExamples]]:
        return [Part(self.examples, str(step), 1.0, 1)]


def train_filter(
    train_on: FilterExamples,
    val: FilterExamples,
    settings: FilterSettings,
    *,
    folder: Path | None = None,
    observe: Callable[[Report], None] = lambda report: None,
) -> nn.Sequential:
    """Fits a filter by binary cross entropy and returns the one of the lowest validation loss.

    Args:
        train_on: Examples that are fitted.
        val: Examples that choose among the updates.
        settings: How.
        folder: For checkpoints, every hundredth of the run: a run that was killed goes on from the
            last, and ends as one that was not. `None`: there are none.
        observe: Told how it goes, about once a second.

    Raises:
        ValueError: If the folder holds a checkpoint that was changed, or one of other sizes.
        RuntimeError: If the loss is not finite.
    """
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = new_network(
            train_on.confidences.shape[1], settings.hidden_sizes, settings.activation
        )
    network.to(train_on.confidences.device)
    objective = _FilterLoss(network, settings.counted)

    @torch.no_grad()
    def evaluate(progress: Progress) -> dict[str, float]:
        loss = objective.loss(val, torch.Generator())
        require_finite("The loss", [loss], progress.step)
        if loss.item() < min((past["loss"] for past in progress.history), default=math.inf):
            objective.best.load_state_dict(network.state_dict())
        return {"loss": loss.item()}

    train(
        objective,
        [torch.optim.AdamW(network.parameters(), lr=settings.learning_rate)],
        _Whole(train_on),
        Settings(
            num_samples=settings.num_steps, folder=folder, schedule=lambda _: 1.0,
            evaluate_every=max(1, settings.num_steps // 100), max_gradient_norm=math.inf,
        ),
        accelerator=Accelerator(cpu=train_on.confidences.device.type == "cpu"),
        evaluate=evaluate,
        measures=["loss"],
        observe=observe,
    )  # fmt: skip
    return objective.best


@torch.no_grad()
def score(network: nn.Module, examples: FilterExamples) -> Float[Tensor, "N K"]:
    """Returns the filter's probability that each proposal is final."""
    scores: Tensor = network(examples.confidences).sigmoid()
    return scores


def acceptance(
    scores: Float[Tensor, "N K"], examples: FilterExamples, threshold: float
) -> Acceptance:
    """Measures the rule that accepts masked positions whose score exceeds a threshold."""
    accepted = (scores > threshold) & examples.masked
    final = examples.final & examples.masked
    right = int((accepted & final).sum())
    return Acceptance(
        precision=right / int(accepted.sum()) if accepted.any() else 1.0,
        recall=right / max(1, int(final.sum())),
    )


def save_filter(
    network: nn.Module,
    path: Path,
    *,
    model: str,
    settings: FilterSettings,
    threshold: float,
    fingerprint: str = "",
) -> None:
    """Writes a filter as safetensors, with what it was trained for, as `Learn2PD` reads it.

    The file appears under its name only when it is complete.

    Args:
        network: The filter.
        path: The file to write.
        model: Name of the model it was trained on.
        settings: How it was trained.
        threshold: It was judged at, for the reader's information.
        fingerprint: `fingerprint_of(model)`; no other model is accepted. "": the name decides.
    """
    weights = {name: value.float().contiguous() for name, value in network.state_dict().items()}
    block_length = next(iter(weights.values())).shape[1]
    described = {
        "model": model,
        "fingerprint": fingerprint,
        "block_length": str(block_length),
        "hidden_sizes": json.dumps(settings.hidden_sizes),
        "activation": settings.activation,
        "threshold": str(threshold),
        "settings": repr(settings),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    save_file(weights, partial, metadata=described)
    partial.replace(path)

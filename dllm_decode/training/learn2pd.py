"""Trains the filter of `samplers.Learn2PD`: which proposals of a block are final."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.caches.entry import entry_alone
from dllm_decode.canvas import Canvas
from dllm_decode.loop import decode
from dllm_decode.models.base import MaskPredictor
from dllm_decode.session import Session
from dllm_decode.training.checkpoints import Progress, load_checkpoint, save_checkpoint
from samplers import FixedSchedule, View
from samplers.learn2pd import new_network

Counted = Literal["all", "masked"]


@dataclass(frozen=True)
class FilterExamples:
    """One example a forward: a block's confidences, and which proposals were final.

    Attributes:
        confidences: Probability of the most likely token at each position; 1 behind a short block.
        final: Whether that token is the reference's; true behind a short block.
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
        return FilterExamples(
            self.confidences[keep], self.final[keep], self.masked[keep], self.prompts[keep]
        )


@dataclass(frozen=True)
class Splits:
    """Examples by purpose; no prompt is in two of them."""

    train: FilterExamples
    val: FilterExamples
    test: FilterExamples


@dataclass(frozen=True)
class FilterSettings:
    """How a filter is trained.

    Source: the authors' training notebook of Learn2PD (AdamW, 0.003, the whole set at once, 40,000
    steps). Differs: fewer steps, and the weights of the lowest validation loss are kept.

    Attributes:
        hidden_sizes: Units of each hidden layer.
        activation: Between layers: relu, tanh or gelu.
        num_steps: Updates, each on all examples, at least 1.
        learning_rate: Of AdamW, above 0.
        counted: Positions in the loss: all of the block as in the paper, or those still masked.
        seed: Of the initial weights.
    """

    hidden_sizes: tuple[int, ...] = (32,)
    activation: str = "relu"
    num_steps: int = 5_000
    learning_rate: float = 3e-3
    counted: Counted = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {self.num_steps}.")
        if not self.learning_rate > 0.0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}.")


@dataclass(frozen=True)
class Acceptance:
    """What a rule accepts on held-out blocks, among masked positions.

    Attributes:
        threshold: The rule's.
        precision: Share of the accepted proposals that are final; 1 if none is accepted.
        recall: Share of the final proposals that are accepted.
    """

    threshold: float
    precision: float
    recall: float


def collect_examples(
    model: MaskPredictor,
    prompts: Sequence[Sequence[int]],
    *,
    gen_length: int,
    block_length: int,
    stop_at_eos: bool = True,
    truncate_at_eos: bool = False,
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
        gen_length: Answer length in tokens.
        block_length: Tokens a block, and inputs of the filter.
        stop_at_eos: As in `decode`.
        truncate_at_eos: As in `decode`: the paper's end-of-text prediction.
        cache: As in `decode`. Where it commits a block's first token by itself, so does the oracle.
        first_prompt: Index of the first prompt.
    """
    out = decode(
        model,
        prompts,
        FixedSchedule(block_length),
        cache=cache,
        gen_length=gen_length,
        block_length=block_length,
        stop_at_eos=stop_at_eos,
        truncate_at_eos=truncate_at_eos,
    )
    canvas = Canvas.blank(
        prompts,
        gen_length,
        mask_id=model.mask_id,
        eos_ids=model.eos_ids,
        align=model.causal_block_length or 1,
        truncates=truncate_at_eos,
        device=model.device,
    )
    reference = canvas.region.scatter(
        1,
        canvas.lead[:, None] + torch.arange(gen_length, device=model.device),
        out.tokens.to(model.device),
    )
    collected: list[FilterExamples] = []
    with torch.inference_mode():
        session = Session(model, canvas, cache, temperature=0.0, seed=0)
        for block in canvas.blocks(block_length):
            session.open()
            part = canvas.take(canvas.num_open(block).nonzero().squeeze(-1))
            enters = cache.commits_entry and model.logit_shift > 0
            while len(part):
                shown = session.forward(part, block, FixedSchedule(block_length))
                # As the filter will: `Learn2PD.reads_committed`.
                view = replace(shown, reads_committed=True)
                wanted = reference[part.rows][:, block.start : block.end]
                # What fills up the last block of a block-causal model has no reference.
                wanted = wanted.where(wanted != model.mask_id, view.most_likely)
                collected.append(_examples(view, wanted, part, block_length, first_prompt))
                right = view.eligible & (view.most_likely == wanted)
                if enters:
                    right = entry_alone(view)
                    enters = False
                part = _commit(part, view, wanted, right).truncate_at_eos()
                part = part.stop_at_eos() if stop_at_eos else part
                canvas = canvas.put(part)
                part = part.take(part.num_open(block).nonzero().squeeze(-1))
    # Outside, so that gradients may flow through what is done with them.
    return join(collected)


def join(parts: Sequence[FilterExamples]) -> FilterExamples:
    """Puts examples together."""
    return FilterExamples(
        torch.cat([part.confidences for part in parts]),
        torch.cat([part.final for part in parts]),
        torch.cat([part.masked for part in parts]),
        torch.cat([part.prompts for part in parts]),
    )


def save_examples(examples: FilterExamples, path: Path) -> None:
    """Writes examples; the file appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(vars(examples), partial)
    partial.replace(path)


def load_examples(path: Path) -> FilterExamples:
    """Reads what `save_examples` wrote."""
    return FilterExamples(**load_file(path))


def split(examples: FilterExamples, seed: int) -> Splits:
    """Splits examples by prompt: 80 % to train, 10 % each to validate and to test.

    Raises:
        ValueError: If there are fewer than ten prompts.
    """
    names = examples.prompts.unique()
    if len(names) < 10:
        raise ValueError(f"A split needs at least 10 prompts, got {len(names)}; collect more.")
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    tenth = len(names) // 10
    val, test = order[:tenth], order[tenth : 2 * tenth]
    in_val, in_test = torch.isin(examples.prompts, val), torch.isin(examples.prompts, test)
    return Splits(
        examples.where(~in_val & ~in_test), examples.where(in_val), examples.where(in_test)
    )


def train_filter(
    train: FilterExamples,
    val: FilterExamples,
    settings: FilterSettings,
    *,
    folder: Path | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> nn.Sequential:
    """Fits a filter by binary cross entropy and returns the one of the lowest validation loss.

    Args:
        train: Examples that are fitted.
        val: Examples that choose among the updates.
        settings: How.
        folder: For checkpoints, every hundredth of the run: a run that was killed goes on from the
            last, and ends as one that was not. `None`: there are none.
        report: Called with the step and the validation loss, every hundredth of the run.

    Raises:
        ValueError: If the folder holds the checkpoint of a filter of other sizes.
    """
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = new_network(
            train.confidences.shape[1], settings.hidden_sizes, settings.activation
        )
    network.to(train.confidences.device)
    best = copy.deepcopy(network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate)
    kept = nn.ModuleDict({"network": network, "best": best})
    progress = Progress()
    if folder is not None:
        progress = load_checkpoint(folder, kept, [optimiser]) or progress
    every = max(1, settings.num_steps // 100)
    while progress.step < settings.num_steps:
        optimiser.zero_grad()
        loss = _loss(network, train, settings.counted)
        loss.backward()
        optimiser.step()
        progress.step += 1
        if progress.step % every and progress.step != settings.num_steps:
            continue
        with torch.no_grad():
            val_loss = _loss(network, val, settings.counted).item()
        if val_loss < min((past["loss"] for past in progress.history), default=float("inf")):
            best.load_state_dict(network.state_dict())
        progress.history.append({"step": float(progress.step), "loss": val_loss})
        if folder is not None:
            save_checkpoint(folder, kept, [optimiser], progress)
        report(progress.step, val_loss)
    return best


@torch.no_grad()
def score(network: nn.Module, examples: FilterExamples) -> Float[Tensor, "N K"]:
    """Returns the filter's probability that each proposal is final."""
    scores: Tensor = network(examples.confidences).sigmoid()
    return scores


def acceptance(
    scores: Float[Tensor, "N K"], examples: FilterExamples, threshold: float
) -> Acceptance:
    """Measures the rule that accepts masked positions whose score exceeds a threshold.

    With the confidences as scores that is the plain confidence threshold.
    """
    accepted = (scores > threshold) & examples.masked
    final = examples.final & examples.masked
    right = int((accepted & final).sum())
    return Acceptance(
        threshold=threshold,
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
) -> None:
    """Writes a filter as safetensors, with what it was trained for, as `Learn2PD` reads it.

    Args:
        network: The filter.
        path: The file to write.
        model: Name of the model it was trained on; no other is accepted later.
        settings: How it was trained.
        threshold: The threshold it was judged at, for the reader's information.
    """
    weights = {name: value.float().contiguous() for name, value in network.state_dict().items()}
    block_length = next(iter(weights.values())).shape[1]
    described = {
        "model": model,
        "block_length": str(block_length),
        "hidden_sizes": json.dumps(settings.hidden_sizes),
        "activation": settings.activation,
        "threshold": str(threshold),
        "settings": repr(settings),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, metadata=described)


def _examples(
    view: View,
    wanted: Int[Tensor, "B W"],
    part: Canvas,
    block_length: int,
    first_prompt: int,
) -> FilterExamples:
    missing = (0, block_length - wanted.shape[1])
    confidences = view.probability(view.most_likely).float()
    return FilterExamples(
        functional.pad(confidences, missing, value=1.0).cpu(),
        functional.pad(view.most_likely == wanted, missing, value=True).cpu(),
        functional.pad(view.masked, missing, value=False).cpu(),
        (part.rows + first_prompt).cpu(),
    )


def _commit(
    part: Canvas, view: View, wanted: Int[Tensor, "B W"], right: Bool[Tensor, "B W"]
) -> Canvas:
    stalled = ~right.any(-1, keepdim=True)
    return part.write(view.start, torch.where(stalled, view.eligible, right), wanted)


def _loss(network: nn.Module, examples: FilterExamples, counted: Counted) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        network(examples.confidences), examples.final.float(), reduction="none"
    )
    if counted == "all":
        return losses.mean()
    return (losses * examples.masked).sum() / examples.masked.sum().clamp(min=1)

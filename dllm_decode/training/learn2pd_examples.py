"""What the filter of `samplers.Learn2PD` learns from: blocks, and which proposals were final."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.observers import StepEvent
from dllm_decode.loop import decode
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig
from samplers import Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact
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

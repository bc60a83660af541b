"""What the filter of `samplers.Learn2PD` learns from: blocks, and which proposals were final."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.caches.entry import entry_alone
from dllm_decode.canvas import Canvas
from dllm_decode.loop import decode
from dllm_decode.models.base import MaskPredictor
from dllm_decode.session import Session
from samplers import FixedSchedule, View

LEAST_PROMPTS = 10
"""The fewest prompts that `split` takes: a tenth of them must be at least one."""


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
        ValueError: If there are fewer than `LEAST_PROMPTS`.
    """
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

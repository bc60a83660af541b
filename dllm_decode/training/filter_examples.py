"""Examples for the filter of `samplers.Learn2PD`, which an oracle's decode gives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.options import DecodeConfig
from dllm_decode.engine.decoding import decode
from samplers import Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact
from samplers.logits.noise import row_keys


@dataclass(frozen=True)
class FilterExamples:
    """One example a forward: a block's confidences, and which proposals were final.

    Attributes:
        confidences: Probability of the most likely token at each position; 1 after a short block.
        final: Whether that token is the reference's; true after a short block.
        prompts: Index of the prompt an example comes from.
    """

    confidences: Float[Tensor, "N K"]
    final: Bool[Tensor, "N K"]
    prompts: Int[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.prompts)

    def where(self, keep: Bool[Tensor, " N"]) -> "FilterExamples":
        """Returns some of the examples."""
        return FilterExamples(**{name: values[keep] for name, values in vars(self).items()})


def join(parts: Sequence[FilterExamples]) -> FilterExamples:
    """Puts examples together."""
    return FilterExamples(
        **{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    )


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

    Differs: The forward that shows a stall is not run twice. With `stop_at_eos`, text after
    the end of an answer gives no examples.

    Args:
        model: The model that the filter is for.
        prompts: Token ids, one sequence per row; one batch.
        config: How answers are decoded: `block_length` are the inputs of the filter,
            `truncate_at_eos` is the paper's end-of-text prediction.
        cache: As in `decode`. If the cache commits a block's first token itself, so does it here.
        first_prompt: Index of the first prompt.
    """
    assert config.block_length is not None
    out = decode(model, prompts, FixedSchedule(config.block_length), cache=cache, config=config)
    oracle = _Oracle(out.tokens.to(model.device))
    collected: list[FilterExamples] = []

    def collect(event: StepEvent) -> None:
        view, before = event.view, event.before
        after_end = view.positions >= (before.ends - before.prompt_lengths)[:, None]
        confidences = view.probability(view.most_likely).float().masked_fill(after_end, 1.0)
        final = (view.most_likely == oracle.reference(view)) | after_end
        prompt_numbers = event.request_indices + first_prompt
        collected.append(FilterExamples(confidences.cpu(), final.cpu(), prompt_numbers.cpu()))

    decode(model, prompts, oracle, cache=cache, config=config, observers=[collect])
    return join(collected)


@dataclass(frozen=True, eq=False)
class _Oracle(Sampler[None]):
    """Commits every proposal that agrees with a reference, or all of the reference if none does.

    `answers` are the references, one row a prompt of the decode.
    """

    answers: Int[Tensor, "N G"]

    @property
    def needs(self) -> frozenset[Fact]:
        # The filter that learns from the examples needs these facts too.
        return super().needs | {Fact.LOGITS_OF_COMMITTED, Fact.WHOLE_BLOCKS}

    def reference(self, view: View) -> Int[Tensor, "B W"]:
        """Returns the tokens of a view's columns.

        Columns before the answer have their own tokens. Columns after the answer, which fill up the
        last block of a block-causal model, have no reference: the most likely token is taken.
        """
        assert view.noise_keys is not None
        keys = row_keys(0, torch.arange(len(self.answers), device=view.noise_keys.device))
        rows = (view.noise_keys[:, None] == keys).long().argmax(-1)
        places = view.positions.clamp(0, self.answers.shape[1] - 1)
        tokens = torch.where(view.positions < 0, view.tokens, self.answers[rows].gather(1, places))
        return torch.where(view.after_answer, view.most_likely, tokens)

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        wanted = self.reference(view)
        right = view.eligible & (view.most_likely == wanted)
        has_stalled = ~right.any(-1, keepdim=True)
        return Decision(torch.where(has_stalled, view.eligible, right), wanted), state

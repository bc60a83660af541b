"""Early commit of the whole answer (Prophet), around any sampler."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from samplers.base import Decision
from samplers.checks import (
    count_from,
    require_count,
    require_non_negative,
    require_share,
    require_tuple,
)
from samplers.fixed_schedule import steps_before
from samplers.logits.float64 import in_float64, widest
from samplers.view import Scope, View
from samplers.wrapper import Wrapper

Averaged = Literal["masked", "all"]


class ProphetState(NamedTuple):
    """The steps taken in the block, and the base's state.

    Attributes:
        steps: Steps of each row in the block.
        base: The state of the wrapped sampler.
    """

    steps: Int[Tensor, " B"]
    base: Any


@dataclass(frozen=True)
class Prophet(Wrapper[ProphetState]):
    """Fills all masks of a row at once when its result is already decided.

    The result is the part of the answer that a task asks for, such as the number after "####"; the
    options call it the answer.

    At each step the gap between the two highest logits is averaged over the result's tokens that
    are still masked. When it reaches the threshold of the current stage, or no such mask is left,
    every mask of the row, in this block and after, takes its proposal. Otherwise the base decides.

    The stage follows progress: the first of `thresholds` holds below the first of `edges`, and so
    on. Progress is the share of the answer committed so far or, with `num_steps`, t / num_steps
    at step t = 1, 2, ... of a fixed schedule.

    The result is `answer_length` tokens from `answer_start`. Or it comes after the first place
    where the committed tokens of the answer spell `marker`, and ends before the first EOS that
    is committed or most likely, or after `answer_length` tokens; nothing is filled before the
    marker appears. Columns outside of the row's answer never count.

    Source: Li et al. 2025, "Diffusion Language Models Know the Answer Before Decoding",
    https://arxiv.org/abs/2508.19982, and the authors' generate_earlyexit.py.

    Differs: Each row is decided by itself; the authors' code looks at the first. The gap averages
    masked positions; with `gap="all"` committed positions too, as in the authors' code. Progress by
    share of tokens is ours, for bases without a fixed number of steps, and so is `marker`. A fixed
    text before the result is a template of `decode`.

    Attributes:
        base: The sampler that decides until then; it must give `Fact.FINAL_TOKENS`.
        thresholds: Least mean gap of each stage, in logits, at least 0.
        edges: Progress, in [0, 1] and ascending, at which the next stage begins.
        answer_start: First position of the result in the answer; `None`: after `marker`.
        answer_length: Tokens of the result, at least 1; after a marker at most so many.
        marker: Token ids after which the result begins, such as those of "####". If it is left out,
            `dllm-decode eval` takes that of the task.
        gap: Which of the result's positions are averaged.
        num_steps: Steps of the whole decode, if fixed; 0: not known in advance.

    Raises:
        ValueError: If an attribute is outside its range, the base cannot be wrapped or, at the
            start of `decode`, there is no marker and no `answer_start`, or the result is not within
            `gen_length`.
    """

    thresholds: tuple[float, ...] = (7.5, 5.0, 2.5)
    edges: tuple[float, ...] = (0.33, 0.67)
    answer_start: Annotated[int, count_from(0)] | None = None
    answer_length: Annotated[int, count_from(1, "tokens")] = 5
    marker: tuple[int, ...] = ()
    gap: Averaged = "masked"
    num_steps: Annotated[int, count_from(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_stages(self.thresholds, self.edges)
        require_tuple("marker", self.marker)
        for token in self.marker:
            require_count("Each token of marker", token, 0)
        if self.answer_start is not None and self.marker:
            raise ValueError(
                "The answer must be at answer_start or after marker, got both. Leave one out."
            )

    @property
    def scope(self) -> Scope:
        # A marker and `gap="all"` look at positions of finished blocks.
        sees_all = self.marker or self.gap == "all" or self.base.scope == "answer"
        return "answer" if sees_all else "suffix"

    def check(self, *, model_name: str, gen_length: int, block_length: int) -> None:
        super().check(model_name=model_name, gen_length=gen_length, block_length=block_length)
        if self.answer_start is None and not self.marker:
            raise ValueError(
                "Prophet must know where the answer is, got neither marker nor answer_start. Give "
                "the token ids before the answer, such as those of '####', as marker=(ID, ...)."
            )
        if self.answer_start is not None and self.answer_start + self.answer_length > gen_length:
            raise ValueError(
                f"Prophet's answer must be within gen_length={gen_length} tokens, got positions "
                f"{self.answer_start} to {self.answer_start + self.answer_length - 1}. Change "
                "answer_start or answer_length, or generate more."
            )

    def with_tokenizer(self, tokenizer: Any, marker: str = "") -> "Prophet":
        base = self.base.with_tokenizer(tokenizer, marker)
        if not marker or self.marker or self.answer_start is not None:
            return replace(self, base=base)
        ids = tuple(tokenizer.encode(marker, add_special_tokens=False))
        return replace(self, base=base, marker=ids)

    def init(self, view: View) -> ProphetState:
        return ProphetState(torch.zeros_like(view.tokens[:, 0]), self.base_init(view))

    def step(self, view: View, state: ProphetState) -> tuple[Decision, ProphetState]:
        steps, inner = state
        commit, tokens, inner = self.base_step(view, inner)
        decided = self._decided(view, steps) & view.eligible.any(-1)
        # Nearly every step can save the time for the proposals of later columns. On an accelerator,
        # reading `decided` takes longer than those proposals, unless tokens have to be drawn.
        if (decided.device.type != "cpu" and view.is_greedy) or decided.any():
            fills = decided[:, None]
            commit = torch.where(fills, view.masked, commit)
            tokens = torch.where(fills, view.proposal, tokens)
        return Decision(commit=commit, tokens=tokens), ProphetState(steps + 1, inner)

    def _decided(self, view: View, steps: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        result = self._result(view)
        top = view.top_k(2, result.offsets)
        masked = view.masked.gather(1, result.offsets)
        in_result = result.in_view
        if self.marker:
            written = view.tokens.gather(1, result.offsets)
            written = torch.where(masked, top.tokens[..., 0].to(masked.device), written)
            in_result = in_result & (~view.is_eos(written)).cumprod(-1).bool()
        counted = in_result & masked if self.gap == "masked" else in_result
        logits = in_float64(top.logits)
        is_counted = counted.to(logits.device)
        gaps = (logits[..., 0] - logits[..., 1]).masked_fill(~is_counted, 0.0)
        mean = gaps.sum(-1) / is_counted.sum(-1)
        reached = mean >= self._threshold(view, steps).to(mean.device)
        # Positions before the window are committed, and so is a result that ends before it.
        exists = in_result.any(-1) | (self.answer_start is not None)
        return exists & (reached.to(steps.device) | ~counted.any(-1))

    def _threshold(self, view: View, steps: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        progress = view.progress
        if self.num_steps:
            before = steps_before(view, self.num_steps)
            progress = (before + steps + 1).to(widest(steps.device)) / self.num_steps
        # A loop over numbers, because a tensor of them would be sent to the device at every step.
        threshold = torch.full_like(progress, self.thresholds[0])
        for edge, later in zip(self.edges, self.thresholds[1:], strict=True):
            threshold = torch.where(progress >= edge, later, threshold)
        return threshold

    def _result(self, view: View) -> "_Result":
        width = view.tokens.shape[1]
        ahead = torch.arange(self.answer_length, device=view.tokens.device)
        if self.answer_start is None:
            starts = self._marker_starts(view)
            exists = starts.any(-1, keepdim=True)
            offsets = starts.long().argmax(-1, keepdim=True) + len(self.marker) + ahead
        else:
            offsets = self.answer_start - view.positions[:, :1] + ahead
            exists = torch.ones_like(offsets[:, :1], dtype=torch.bool)
        inside = offsets.clamp(0, width - 1)
        return _Result(inside, exists & (offsets == inside) & view.in_answer.gather(1, inside))

    def _marker_starts(self, view: View) -> Bool[Tensor, "B W"]:
        """Marks the columns at which committed tokens of the answer begin to spell the marker."""
        committed = view.tokens.masked_fill(view.masked | ~view.in_answer, -1)
        length = len(self.marker)
        spans = functional.pad(committed, (0, length - 1)).unfold(1, length, 1).unbind(-1)
        matches = [span == token for span, token in zip(spans, self.marker, strict=True)]
        return torch.stack(matches).all(0)


class _Result(NamedTuple):
    """Where the result is in each row's answer.

    Attributes:
        offsets: Columns of the window.
        in_view: True where a column is a position of the result; other columns are padding.
    """

    offsets: Int[Tensor, "B A"]
    in_view: Bool[Tensor, "B A"]


def _check_stages(thresholds: tuple[float, ...], edges: tuple[float, ...]) -> None:
    require_tuple("thresholds", thresholds)
    require_tuple("edges", edges)
    if len(thresholds) != len(edges) + 1:
        raise ValueError(
            f"thresholds must have one entry more than edges, got {thresholds} and {edges}."
        )
    for threshold in thresholds:
        require_non_negative("Each of thresholds", threshold, unit="a logit gap")
    for edge in edges:
        require_share("Each of edges", edge)
    if list(edges) != sorted(edges):
        raise ValueError(f"edges must be in ascending order, got {edges}.")

"""The view: the part of the canvas that a sampler sees, and statistics of its logits.

Samplers read the attributes of `View` and its members up to `with_logit_bias`; the engine and
wrappers use those that follow. It is one class, and long, because its names are the contract.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from samplers.logits import noise, statistics
from samplers.logits.float64 import widest
from samplers.logits.statistics import TopK
from samplers.logits.summary import Summary
from samplers.logits.window import WindowLogits

Scope: TypeAlias = Literal["block", "suffix", "answer"]
"""Which positions a sampler must see: the open block, from there to the end, or all."""

Order: TypeAlias = Literal["confidence", "random", "margin", "entropy"]
"""Which positions come first: of highest confidence or margin, lowest entropy, or any."""

# Vocabulary ids draw token noise; these keys, which no vocabulary reaches, draw orders and tokens.
_ORDER_STREAM = -1
_TOKEN_STREAM = -2

# A normal float32 number for any confidence above 1e-8, and below any threshold.
_DEFERRED_SCALE = 2.0**-100


class Likeliest(NamedTuple):
    """The most likely tokens of each position, most likely first, and their probabilities."""

    probabilities: Float[Tensor, "B W n"]
    tokens: Int[Tensor, "B W n"]


@dataclass(frozen=True)
class View:
    """One window of the answer, in all rows, at one step: all that a sampler sees.

    A window is `W` consecutive positions of the answer: the open block, or more if the sampler's
    `scope` asks for it. Read the statistics rather than `logits`: they are computed once, on first
    use, in float32 or better, without a copy of the logits.

    Rows may be at different places of their answers and have different options. `start`,
    `gen_length`, `temperature` and `block_start` are numbers where all rows agree, and tensors with
    one number a row where they differ. `positions` and `in_answer` work in both cases.

    `confidence`, `margin` and `entropy` describe the distribution at temperature 1. A committed
    token is certain (confidence 1, entropy 0), unless the sampler needs `Fact.LOGITS_OF_COMMITTED`:
    then the statistics at committed tokens are the model's. A masked position whose proposal is one
    of `deferred_ids` comes after all others: its confidence and margin are scaled by 2^-100, which
    keeps the order among such positions, and its entropy is raised by ln V. Logits, probabilities,
    draws and the other positions do not change.

    `num_left` counts the answer tokens that each row has yet to commit, in and outside the window;
    `progress` is the share that is committed; `in_answer` says which columns are the row's own,
    because rows may end at different positions. Columns after a row's end are neither masked nor
    eligible. An average over the window must count `in_answer` columns only. Masks of the open
    block are `eligible.sum(-1)`.

    Attributes:
        tokens: The window's tokens; [MASK] where `masked`.
        summary: Logits as the engine computed them, perhaps of some columns only. For the engine:
            samplers read `logits`.
        masked: Positions that hold [MASK]. If a block schedule opens several blocks in one window,
            masks of blocks that are not open yet are left out, and count as certain.
        eligible: Positions that may be committed now: open and masked, with a sampler that
            revises also open tokens.
        start: Answer position of the window's first column; negative if the window begins inside
            the prompt.
        gen_length: Answer length in tokens.
        num_committed: Number of answer positions that hold a token, in and outside the window; on a
            block-causal model also columns that fill up the last block, up to `gen_length`. `None`
            counts the window's.
        temperature: Gumbel-max temperature of the proposals, 0 is greedy. A tensor is in float64 if
            the device has it.
        noise_keys: One noise key a row, see `samplers.logits.noise.row_keys`. `None` is key 0.
        block_start: Column of the window at which the open block begins.
        block_length: Columns of the open block; `None`: the whole window. It may reach beyond the
            window, see `within`.
        reads_committed: True if statistics at committed positions are the model's, as for samplers
            that need `Fact.LOGITS_OF_COMMITTED`; then `summary` has all columns.
        leave_one_out: Probability of each token if the model does not see the token, in the
            distribution that confidences are read from; 0 at masks. `None` unless the sampler needs
            it.
        deferred_ids: Tokens that are to be committed last. Source: `confidence_eos_eot_inf` of
            LLaDA's generate.py (Nie et al. 2025, https://arxiv.org/abs/2502.09992). Differs: the
            authors' code gives these ids no share of any distribution, which changes the confidence
            of the other proposals too, and at a temperature above 0 it forgets one of the ids.
        eos_ids: Tokens that end an answer, see `is_eos`.
        forced_tokens: The token that is written where a position is committed, whatever the
            sampler decides, because the row's answer must be in a set of texts; -1 if any will do.
            `None`: no row has such a constraint.
    """

    tokens: Int[Tensor, "B W"]
    summary: Summary
    masked: Bool[Tensor, "B W"]
    eligible: Bool[Tensor, "B W"]
    start: Int[Tensor, " B"] | int
    gen_length: Int[Tensor, " B"] | int
    num_committed: Int[Tensor, " B"] | None = None
    temperature: Float[Tensor, " B"] | float = 0.0
    noise_keys: Int[Tensor, " B"] | None = None
    block_start: Int[Tensor, " B"] | int = 0
    block_length: int | None = None
    reads_committed: bool = True
    leave_one_out: Float[Tensor, "B W"] | None = None
    deferred_ids: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()
    forced_tokens: Int[Tensor, "B W"] | None = None

    @property
    def logits(self) -> Float[Tensor, "B W V"]:
        """Logits of all columns at temperature 1, `[B, W, V]`, in the model's dtype or float32.

        [MASK] and ids that must never be written are at -inf. These are the logits that the
        statistics describe: where a committed token is certain, 0 for that token and -inf for all
        others. This may be a copy of the computed logits: a rule that needs only the statistics is
        faster.
        """
        return self._window.logits

    @property
    def vocab_size(self) -> int:
        """Number of token ids, V."""
        return self.summary.logits.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the statistics: float32, or float64 for logits in float64."""
        return torch.promote_types(self.summary.logits.dtype, torch.float32)

    @property
    def is_greedy(self) -> bool:
        """True if no row draws its proposals; False if temperatures differ by row."""
        return not isinstance(self.temperature, Tensor) and self.temperature == 0.0

    @property
    def block_width(self) -> int:
        """Columns of the open block, as a number."""
        return self.tokens.shape[1] if self.block_length is None else self.block_length

    @cached_property
    def proposal(self) -> Int[Tensor, "B W"]:
        """The token that a commit writes, `[B, W]`: the argmax, or a draw above temperature 0.

        In rows with a constraint it is the token in `forced_tokens`, unless that is -1.
        """
        if self.is_greedy:
            return self.tokens_to_write(self.most_likely)
        window, keys, offsets = self._window, self.position_keys, self.summary.offsets
        keys = keys if offsets is None else keys.gather(1, offsets)
        drawn = statistics.draw(self.summary.logits, self.temperature, keys)
        drawn = window.replace_committed(window.scattered(drawn), self.tokens)
        if isinstance(self.temperature, Tensor):
            drawn = torch.where(self.temperature[:, None] > 0.0, drawn, self.most_likely)
        return self.tokens_to_write(drawn)

    @cached_property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the highest logit, `[B, W]`, the lowest id of ties."""
        return self._window.most_likely

    @cached_property
    def confidence(self) -> Float[Tensor, "B W"]:
        """Probability of the proposal at temperature 1, `[B, W]`, in [0, 1].

        1 / sum over j of exp(l_j - l_max) for the most likely token: accurate near 1.
        """
        top_probability = (1.0 + self._window.odds_against).reciprocal()
        if self.is_greedy and self.forced_tokens is None:
            return self._defer(top_probability, scale=_DEFERRED_SCALE)
        probability = self.probability(self.proposal)
        if isinstance(self.temperature, Tensor):
            may_differ = self.temperature[:, None] > 0.0
            if self.forced_tokens is not None:
                may_differ = may_differ | (self.forced_tokens >= 0)
            probability = torch.where(may_differ, probability, top_probability)
        return self._defer(probability, scale=_DEFERRED_SCALE)

    @cached_property
    def margin(self) -> Float[Tensor, "B W"]:
        """Probability of the most likely token less that of the second, `[B, W]`, in [0, 1]."""
        top = self.likeliest(2).probabilities
        return self._defer(top[..., 0] - top[..., 1], scale=_DEFERRED_SCALE)

    @cached_property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy at temperature 1 in nats, `[B, W]`; 0 is certain."""
        return self._defer(self._window.entropy, raised=math.log(self.vocab_size))

    @cached_property
    def progress(self) -> Float[Tensor, " B"]:
        """Share of the answer that is committed, `[B]`: tokens over `gen_length`, in [0, 1].

        It counts tokens, not steps, and the whole answer, not the block; given tokens and EOS that
        fill up the answer count as committed. In float64, or float32 on a device without float64.
        """
        committed = self._num_committed.to(widest(self.tokens.device))
        return statistics.divided(committed, self.gen_length)

    @property
    def num_left(self) -> Int[Tensor, " B"]:
        """Answer tokens that each row has yet to commit, `[B]`, in and outside the window."""
        return self.gen_length - self._num_committed

    @property
    def in_answer(self) -> Bool[Tensor, "B W"]:
        """Columns of the row's own answer of `gen_length` tokens, `[B, W]`."""
        return (self.positions >= 0) & ~self.after_answer

    @property
    def after_answer(self) -> Bool[Tensor, "B W"]:
        """Columns after the end of the row's own answer, `[B, W]`.

        They are after the row's end, or fill up the last block of a block-causal model. When a
        block opens, the masked columns fill up the block; the others are after the row's end.
        """
        return self.positions >= by_row(self.gen_length)

    @property
    def positions(self) -> Int[Tensor, "B W"]:
        """Positions in the row's own answer, `[B, W]`, from 0; negative in the prompt."""
        offsets = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (offsets + by_row(self.start)).expand_as(self.tokens)

    def top_k(self, n: int, offsets: Int[Tensor, "B n"] | None = None) -> TopK:
        """Returns the n largest logits, descending, and their tokens, both `[B, W, n]`.

        Args:
            n: Number of logits.
            offsets: Columns of the window, from 0; `None`: all.
        """
        return (self if offsets is None else self._part(offsets))._window.top_k(n)

    def likeliest(self, n: int) -> Likeliest:
        """Returns the n most likely tokens and their probabilities, both `[B, W, n]`."""
        logits, tokens = self.top_k(n)
        weights = (logits - self._window.largest[..., None]).exp()
        return Likeliest(weights / (1.0 + self._window.odds_against[..., None]), tokens)

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position, at temperature 1."""
        return self._window.probability(tokens)

    def is_eos(self, tokens: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
        """Returns which of some tokens end an answer."""
        return is_one_of(tokens, self.eos_ids)

    def scores(self, order: Order) -> Float[Tensor, "B W"]:
        """Returns a score per position; `order` is that of descending scores."""
        match order:
            case "confidence":
                return self.confidence
            case "margin":
                return self.margin
            case "entropy":
                return -self.entropy
            case "random":
                return self.uniform()

    @property
    def position_keys(self) -> Int[Tensor, "B W"]:
        """Keys of the noise of each position, `[B, W]`."""
        keys = torch.zeros_like(self.tokens[:, 0]) if self.noise_keys is None else self.noise_keys
        return noise.position_keys(keys, self._num_committed, self.positions)

    def uniform(self) -> Float[Tensor, "B W"]:
        """Returns a number in (0, 1) for each position, for random orders; keyed as token noise."""
        return noise.uniform(self.position_keys + _ORDER_STREAM)

    def random_tokens(self) -> Int[Tensor, "B W"]:
        """Returns a random token for each position, independent of logits; keyed as token noise."""
        return noise.random_tokens(self.position_keys + _TOKEN_STREAM, self.vocab_size)

    def at_step(self, step: Int[Tensor, " B"]) -> "View":
        """Returns a view whose noise also depends on a number of each row, such as its step.

        Otherwise the noise of a position stays the same until the row commits a token.
        """
        keys = torch.zeros_like(step) if self.noise_keys is None else self.noise_keys
        return replace(self, noise_keys=noise.step_keys(keys, step))

    def with_logits(self, logits: Float[Tensor, "B W V"]) -> "View":
        """Returns a view whose statistics follow other logits."""
        return replace(self, summary=Summary(logits))

    def with_logit_bias(
        self, tokens: Int[Tensor, "B W R"], values: Float[Tensor, "B W R"]
    ) -> "View":
        """Returns a view whose statistics follow logits raised at a few tokens of each position.

        Args:
            tokens: Token ids, each at most once per position; -1 marks an unused slot.
            values: Numbers to add to the logits of these tokens; 0 in unused slots.
        """
        return replace(self, summary=self.summary.raised(tokens, values))

    def tokens_to_write(self, tokens: Int[Tensor, "B W"]) -> Int[Tensor, "B W"]:
        """Returns the tokens to write: the forced token if there is one, else the given one."""
        if self.forced_tokens is None:
            return tokens
        return torch.where(self.forced_tokens >= 0, self.forced_tokens, tokens)

    def within(self, scope: Scope) -> "View":
        """Returns the part of the window that a sampler of some scope asks for.

        The open block has `block_width` columns in every row. The suffix of rows whose blocks begin
        at different columns has as many columns as the window. Columns that this adds after the
        window's last one are settled: neither masked nor eligible.
        """
        offsets, width = self._offsets_of(scope), self.tokens.shape[1]
        if isinstance(offsets, slice):
            if offsets == slice(0, width):
                return self
            part, first = self._part(offsets), offsets.start
        else:
            part, first = self._part(offsets.clamp(max=width - 1)), offsets[:, 0]
            is_there = offsets < width
            part = replace(part, masked=part.masked & is_there, eligible=part.eligible & is_there)
        return replace(part, start=self.start + first, block_start=0, block_length=self.block_width)

    def widened(self, values: Shaped[Tensor, "B n"], scope: Scope) -> Shaped[Tensor, "B W"]:
        """Puts values of the columns of `within(scope)` back where they are in this window.

        The other columns get 0, or False. Values after the window's last column are dropped.
        """
        offsets, (B, W) = self._offsets_of(scope), self.tokens.shape
        if isinstance(offsets, slice):
            return functional.pad(values, (offsets.start, W - offsets.stop))
        wide = values.new_zeros(B, W + values.shape[1])
        return wide.scatter_(1, offsets, values)[:, :W]

    def take(self, rows: Int[Tensor, " N"]) -> "View":
        """Returns the view of some rows."""
        parts = {field.name: _take_rows(getattr(self, field.name), rows) for field in fields(self)}
        return View(**parts)

    def _offsets_of(self, scope: Scope) -> slice | Int[Tensor, "B n"]:
        """Returns the columns that a scope asks for; a tensor where they differ by row."""
        width, start = self.tokens.shape[1], self.block_start
        if scope == "answer":
            return slice(0, width)
        num_columns = self.block_width if scope == "block" else width
        if not isinstance(start, Tensor):
            end = start + num_columns if scope == "block" else width
            if end <= width:
                return slice(start, end)
        ahead = torch.arange(num_columns, device=self.tokens.device)
        return (ahead + by_row(start)).expand(len(self.tokens), -1)

    def _part(self, offsets: slice | Int[Tensor, "B n"]) -> "View":
        """Returns the view of some columns; values of whole rows do not change."""
        if self.summary.offsets is not None:
            return self.with_logits(self.logits)._part(offsets)
        rows: Tensor | slice = slice(None)
        if not isinstance(offsets, slice):
            rows = torch.arange(len(offsets), device=offsets.device)[:, None]
        return replace(
            self,
            tokens=self.tokens[rows, offsets],
            summary=Summary(self.summary.logits[rows, offsets]),
            masked=self.masked[rows, offsets],
            eligible=self.eligible[rows, offsets],
            num_committed=self._num_committed,
            leave_one_out=None if self.leave_one_out is None else self.leave_one_out[rows, offsets],
            forced_tokens=None if self.forced_tokens is None else self.forced_tokens[rows, offsets],
        )

    @cached_property
    def _window(self) -> WindowLogits:
        return WindowLogits(self.tokens, self.summary, self.masked, self.reads_committed)

    def _defer(
        self, values: Float[Tensor, "B W"], *, scale: float = 1.0, raised: float = 0.0
    ) -> Float[Tensor, "B W"]:
        """Scales and raises values of masked positions whose proposal is to come last."""
        if not self.deferred_ids:
            return values
        is_deferred = self.masked & is_one_of(self.proposal, self.deferred_ids)
        return torch.where(is_deferred, values * scale + raised, values)

    @property
    def _num_committed(self) -> Int[Tensor, " B"]:
        return (~self.masked).sum(-1) if self.num_committed is None else self.num_committed


def by_row(number: Int[Tensor, " B"] | int) -> Int[Tensor, "B 1"] | int:
    """Returns a tensor of one number per row as (B, 1), and one number for all rows as it is."""
    return number[:, None] if isinstance(number, Tensor) else number


def is_one_of(tokens: Int[Tensor, "*shape"], wanted: Sequence[int]) -> Bool[Tensor, "*shape"]:
    """Returns which tokens are among those that are wanted."""
    # One comparison per id, because a tensor of ids would be sent to the device at every step.
    matches = [tokens == token for token in wanted]
    return reduce(or_, matches) if matches else torch.zeros_like(tokens, dtype=torch.bool)


def _take_rows(part: Any, rows: Int[Tensor, " N"]) -> Any:
    """Returns some rows of a part of a view, and a value that all rows share as it is."""
    if isinstance(part, Summary):
        return part.take(rows)
    return part[rows] if isinstance(part, Tensor) else part

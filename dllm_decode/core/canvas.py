"""The canvas: the tokens of some rows, and which of them are settled.

Two rows, prompts of 5 and 3 tokens, blocks of 4 tokens; row 0 is in its first block, row 1 in its
second:

    column     0  1  2  3  4  5  6  7  8  9 10 11 12
    row 0     [p  p  p  p  p |A  A  A  A| a  a  a  a]     p prompt     s settled answer
    row 1     [p  p  p |s  s  s  s| A  A  A  A] .  .      A open block a later blocks
    position                  0  1  2  3  4  5  6  7      . nobody's: settled, holds an EOS
                                                            (positions of row 0)

    column     a place of a row, counted from the row's own first token. It is the rotary position
               of its token and its slot in the key-value cache; it never changes.
    position   a place in the row's answer, counted from the answer's first token.
    settled    a column whose token is decided: prompts, given tokens, and what a sampler has
               settled. The others are unsettled; masked diffusion fills them with [MASK].
    window     consecutive columns of each row, equally many, from a start of the row's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Canvas:
    """Tokens of some rows. Immutable, and knows nothing of plug-ins.

    Attributes:
        tokens: Prompt and answer from column 0 on; an EOS in columns that are nobody's.
        unsettled: Columns of the answer whose token is not decided yet.
        answer: Columns of the row's own answer. On a block-causal model they include what fills up
            the last block.
        given: Columns of the prompt and of the template's tokens, which never change.
        prompt_lengths: Column of each row's answer position 0.
        firsts: Column at which each row's first block begins, see `Row.first`.
        ends: First column that is not the row's.
        gen_lengths: Tokens of each row's answer.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer; the first one fills what follows the end.
    """

    tokens: Int[Tensor, "B L"]
    unsettled: Bool[Tensor, "B L"]
    answer: Bool[Tensor, "B L"]
    given: Bool[Tensor, "B L"]
    prompt_lengths: Int[Tensor, " B"]
    firsts: Int[Tensor, " B"]
    ends: Int[Tensor, " B"]
    gen_lengths: Int[Tensor, " B"]
    mask_id: int
    eos_ids: tuple[int, ...]

    @staticmethod
    def blank(
        rows: Sequence["BlankRow"],
        *,
        width: int,
        mask_id: int,
        eos_ids: tuple[int, ...],
        device: torch.device | str = "cpu",
    ) -> "Canvas":
        """Lays out prompts, given tokens and masks, left-aligned.

        Args:
            rows: Prompts, templates and lengths.
            width: Columns of the canvas, L.
            mask_id: The [MASK] token.
            eos_ids: Tokens that end an answer.
            device: Where the tensors live.
        """
        tokens = torch.full((len(rows), width), eos_ids[0], dtype=torch.long)
        for line, row in zip(tokens, rows, strict=True):
            line[: row.end] = mask_id
            written = [*row.prompt, *row.template]
            line[: len(written)] = torch.tensor(written)
        tokens = tokens.to(device)
        bounds = [(len(row.prompt), row.gen_length, row.first, row.end) for row in rows]
        prompts, lengths, firsts, ends = torch.tensor(bounds, device=device).unbind(-1)
        columns = torch.arange(width, device=device)
        inside = columns < ends[:, None]
        answer = inside & (columns >= prompts[:, None])
        unsettled = answer & (tokens == mask_id)
        return Canvas(
            tokens=tokens,
            unsettled=unsettled,
            answer=answer,
            given=inside & ~unsettled,
            prompt_lengths=prompts,
            firsts=firsts,
            ends=ends,
            gen_lengths=lengths,
            mask_id=mask_id,
            eos_ids=eos_ids,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Number of columns, L."""
        return self.tokens.shape[1]

    @property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Unsettled columns that hold [MASK]; an editing sampler keeps others unsettled too."""
        return self.unsettled & (self.tokens == self.mask_id)

    @property
    def unfinished(self) -> Bool[Tensor, "B L"]:
        """Unsettled columns of the answer itself, without what fills up its last block."""
        columns = torch.arange(self.width, device=self.tokens.device)
        return self.unsettled & (columns < (self.prompt_lengths + self.gen_lengths)[:, None])

    def is_eos(self, tokens: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Returns which of some tokens end an answer."""
        # One comparison a token: a tensor of the ids would be sent to the device at every step.
        return reduce(or_, (tokens == token for token in self.eos_ids))

    @property
    def eos(self) -> Bool[Tensor, "B L"]:
        """Columns of the answer that hold an EOS."""
        return self.is_eos(self.tokens) & self.answer

    def answers(self) -> Int[Tensor, "B G"]:
        """Returns each row's answer; EOS follow the end of an answer shorter than the longest."""
        length = int(self.gen_lengths.max())
        offsets = torch.arange(length, device=self.tokens.device)
        columns = self.prompt_lengths[:, None] + offsets
        found = self.tokens.gather(1, columns.clamp(max=self.width - 1))
        return torch.where(offsets < self.gen_lengths[:, None], found, self.eos_ids[0])

    def take(self, rows: Int[Tensor, " N"]) -> "Canvas":
        """Returns some rows."""
        return replace(
            self,
            tokens=self.tokens[rows],
            unsettled=self.unsettled[rows],
            answer=self.answer[rows],
            given=self.given[rows],
            prompt_lengths=self.prompt_lengths[rows],
            firsts=self.firsts[rows],
            ends=self.ends[rows],
            gen_lengths=self.gen_lengths[rows],
        )

    def joined(self, others: "Canvas") -> "Canvas":
        """Returns these rows, then others, as wide as the wider of both."""
        width = max(self.width, others.width)
        one, other = self._widened(width), others._widened(width)
        return replace(
            one,
            tokens=torch.cat([one.tokens, other.tokens]),
            unsettled=torch.cat([one.unsettled, other.unsettled]),
            answer=torch.cat([one.answer, other.answer]),
            given=torch.cat([one.given, other.given]),
            prompt_lengths=torch.cat([one.prompt_lengths, other.prompt_lengths]),
            firsts=torch.cat([one.firsts, other.firsts]),
            ends=torch.cat([one.ends, other.ends]),
            gen_lengths=torch.cat([one.gen_lengths, other.gen_lengths]),
        )

    def _widened(self, width: int) -> "Canvas":
        more = (0, width - self.width)
        if not more[1]:
            return self
        return replace(
            self,
            tokens=pad(self.tokens, more, value=self.eos_ids[0]),
            unsettled=pad(self.unsettled, more),
            answer=pad(self.answer, more),
            given=pad(self.given, more),
        )

    def truncated(self, where: Bool[Tensor, " B"] | None, *, keeps_tokens: bool) -> "Canvas":
        """Writes an EOS over what follows the first EOS of some rows; given tokens stay.

        Masks before that EOS stay too, and are still decoded.

        Args:
            where: The rows; `None`: all.
            keeps_tokens: Whether tokens other than [MASK] stay, as for a sampler that edits them.
        """
        eos = self.eos
        after = (eos.cumsum(-1) > eos.long()) & self.answer & ~self.given
        after = after & self.masked if keeps_tokens else after
        return self.filled(after if where is None else after & where[:, None])

    def filled(self, where: Bool[Tensor, "B L"]) -> "Canvas":
        """Returns the canvas with an EOS settled in some columns."""
        tokens = self.tokens.masked_fill(where, self.eos_ids[0])
        return replace(self, tokens=tokens, unsettled=self.unsettled & ~where)


@dataclass(frozen=True)
class BlankRow:
    """One row before it is laid out.

    Attributes:
        prompt: Token ids.
        template: First tokens of the answer, [MASK] where they are open; the rest is open.
        gen_length: Tokens of the answer.
        first: Column at which the first block begins.
        end: First column that is not the row's.
    """

    prompt: Sequence[int]
    template: Sequence[int]
    gen_length: int
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive columns of each row, equally many, from a start of the row's own.

    Attributes:
        starts: First column of each row.
        width: Columns of each row, W.
        index: Columns of the window; `None` if a slice serves, because all rows start at one
            column.
        places: For each column of the canvas its place in the window; any place if it has none.
        inside: Columns of the canvas that have a place in the window.
        open: Columns of the window that may be settled now, if they are unsettled; `None`: all.
    """

    starts: tuple[int, ...]
    width: int
    index: Int[Tensor, "B W"] | None = None
    places: Int[Tensor, "B L"] | None = None
    inside: Bool[Tensor, "B L"] | None = None
    open: Bool[Tensor, "_ W"] | None = None

    @staticmethod
    def of(starts: Sequence[int], width: int, canvas: Canvas) -> "Window":
        """Returns a window; columns after the canvas' last one are read as that one."""
        device, last = canvas.tokens.device, canvas.width - 1
        if len(set(starts)) == 1 and starts[0] + width <= canvas.width:
            return Window(tuple(starts), width)
        at = torch.tensor(starts, device=device)[:, None]
        index = (at + torch.arange(width, device=device)).clamp(max=last)
        places = torch.arange(canvas.width, device=device) - at
        inside = (places >= 0) & (places < width)
        return Window(tuple(starts), width, index, places.clamp(0, width - 1), inside)

    @property
    def firsts(self) -> int | Int[Tensor, " B"]:
        """First column of each row, or of all rows if a slice serves."""
        return self.starts[0] if self.index is None else self.index[:, 0]

    def part(self, values: Tensor) -> Tensor:
        """Returns the window's part of something that is known of every column."""
        if self.index is None:
            return values[:, self.starts[0] : self.starts[0] + self.width]
        return values.gather(1, self.index)

    def put(self, values: Tensor, where: Bool[Tensor, "B W"], new: Tensor | bool) -> Tensor:
        """Returns values of every column, in which some columns of the window have new ones."""
        if self.places is None or self.inside is None:
            written = values.clone()
            part = written[:, self.starts[0] : self.starts[0] + self.width]
            part.copy_(torch.where(where, new, part))
            return written
        # Pulled, not pushed: a window that reaches beyond the canvas must not overwrite its last
        # column.
        is_new = where.gather(1, self.places) & self.inside
        found = new if isinstance(new, bool) else new.gather(1, self.places)
        return torch.where(is_new, found, values)

    def opened(self, bounds: Sequence[tuple[int, int]], device: torch.device) -> "Window":
        """Returns the window in which the columns between bounds of each row are open."""
        own = [(a - at, b - at) for (a, b), at in zip(bounds, self.starts, strict=True)]
        own = own[:1] if len(set(own)) == 1 else own
        offsets, limits = torch.arange(self.width, device=device), torch.tensor(own, device=device)
        return replace(self, open=(offsets >= limits[:, :1]) & (offsets < limits[:, 1:]))

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
    settled    a column whose token is decided: by the prompt, by the template or by a sampler.
               The others are unsettled; masked diffusion fills them with [MASK].
    window     consecutive columns of each row, equally many, from a start of the row's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send
from samplers.view import is_one_of

# The fields of a canvas with one entry a row.
_TENSORS = (
    "tokens", "unsettled", "after_prompt", "given", "prompt_lengths", "blocks_starts", "ends",
    "gen_lengths",
)  # fmt: skip


@dataclass(frozen=True)
class Canvas:
    """Tokens of some rows. Immutable, and independent of plug-ins.

    Attributes:
        tokens: Prompt and answer from column 0 on; an EOS in columns after the row's end.
        unsettled: Columns of the answer whose token is not decided yet.
        after_prompt: Columns of the row after its prompt: the answer and, on a block-causal model,
            the columns that fill up its last block.
        given: Columns of the prompt and of the template's tokens, which never change.
        prompt_lengths: Column of each row's answer position 0.
        blocks_starts: Column at which each row's first block begins, see `Row.blocks_start`.
        ends: First column that is not the row's.
        gen_lengths: Tokens of each row's answer.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer; the first one fills the columns after the end.
    """

    tokens: Int[Tensor, "B L"]
    unsettled: Bool[Tensor, "B L"]
    after_prompt: Bool[Tensor, "B L"]
    given: Bool[Tensor, "B L"]
    prompt_lengths: Int[Tensor, " B"]
    blocks_starts: Int[Tensor, " B"]
    ends: Int[Tensor, " B"]
    gen_lengths: Int[Tensor, " B"]
    mask_id: int
    eos_ids: tuple[int, ...]

    @staticmethod
    def of(
        rows: Sequence[Row],
        *,
        width: int,
        mask_id: int,
        eos_ids: tuple[int, ...],
        device: torch.device | str = "cpu",
    ) -> "Canvas":
        """Lays out prompts, given tokens and masks, left-aligned.

        Args:
            rows: The rows, of which only the request and the bounds are read.
            width: Columns of the canvas, L.
            mask_id: The [MASK] token.
            eos_ids: Tokens that end an answer.
            device: Device of the tensors.
        """
        device = torch.device(device)
        lines = []
        for row in rows:
            written = [*row.request.prompt, *row.request.template]
            masks = [mask_id] * (row.end - len(written))
            lines.append([*written, *masks, *[eos_ids[0]] * (width - row.end)])
        tokens = send(lines, device, torch.long).view(len(rows), width)
        bounds = [
            (row.prompt_length, row.config.gen_length, row.blocks_start, row.end) for row in rows
        ]
        numbers = send(bounds, device, torch.long).view(-1, 4)
        prompts, lengths, blocks_starts, ends = numbers.unbind(-1)
        columns = torch.arange(width, device=device)
        inside = columns < ends[:, None]
        after_prompt = inside & (columns >= prompts[:, None])
        unsettled = after_prompt & (tokens == mask_id)
        return Canvas(
            tokens=tokens,
            unsettled=unsettled,
            after_prompt=after_prompt,
            given=inside & ~unsettled,
            prompt_lengths=prompts,
            blocks_starts=blocks_starts,
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
        """Unsettled columns that hold [MASK]; an editing sampler leaves tokens unsettled too."""
        return self.unsettled & (self.tokens == self.mask_id)

    @property
    def unfinished(self) -> Bool[Tensor, "B L"]:
        """Unsettled columns of the answer, without those that fill up its last block."""
        columns = torch.arange(self.width, device=self.tokens.device)
        return self.unsettled & (columns < (self.prompt_lengths + self.gen_lengths)[:, None])

    def is_eos(self, tokens: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Returns which of some tokens end an answer."""
        return is_one_of(tokens, self.eos_ids)

    @property
    def eos(self) -> Bool[Tensor, "B L"]:
        """Columns of the answer that hold an EOS."""
        return self.is_eos(self.tokens) & self.after_prompt

    def answer_tokens(self) -> Int[Tensor, "B G"]:
        """Returns each row's answer, filled up with EOS to the length of the longest."""
        length = int(self.gen_lengths.max())
        offsets = torch.arange(length, device=self.tokens.device)
        columns = self.prompt_lengths[:, None] + offsets
        tokens = self.tokens.gather(1, columns.clamp(max=self.width - 1))
        return torch.where(offsets < self.gen_lengths[:, None], tokens, self.eos_ids[0])

    def take(self, rows: Int[Tensor, " N"]) -> "Canvas":
        """Returns the canvas of some rows."""
        parts: dict[str, Any] = {name: getattr(self, name)[rows] for name in _TENSORS}
        return replace(self, **parts)

    def put(self, rows: Int[Tensor, " N"], part: "Canvas") -> "Canvas":
        """Returns the canvas with the tokens of some rows, and what is settled in them."""
        return replace(
            self,
            tokens=self.tokens.index_copy(0, rows, part.tokens),
            unsettled=self.unsettled.index_copy(0, rows, part.unsettled),
        )

    def joined(self, others: "Canvas") -> "Canvas":
        """Returns these rows, then the others, as wide as the wider canvas."""
        width = max(self.width, others.width)
        first, second = self._widened(width), others._widened(width)
        parts: dict[str, Any] = {
            name: torch.cat([getattr(first, name), getattr(second, name)]) for name in _TENSORS
        }
        return replace(self, **parts)

    def _widened(self, width: int) -> "Canvas":
        padding = (0, width - self.width)
        if not padding[1]:
            return self
        return replace(
            self,
            tokens=pad(self.tokens, padding, value=self.eos_ids[0]),
            unsettled=pad(self.unsettled, padding),
            after_prompt=pad(self.after_prompt, padding),
            given=pad(self.given, padding),
        )

    def truncated(self, where: Bool[Tensor, " B"], *, keeps_tokens: bool) -> "Canvas":
        """Settles an EOS in every column after the first EOS of some rows; given tokens stay.

        Masks before that EOS stay too, and are still decoded.

        Args:
            where: The rows.
            keeps_tokens: True if tokens other than [MASK] stay, as for a sampler that edits them.
        """
        eos = self.eos
        after = (eos.cumsum(-1) > eos.long()) & self.after_prompt & ~self.given
        after = after & self.masked if keeps_tokens else after
        return self.with_eos(after & where[:, None])

    def with_eos(self, where: Bool[Tensor, "B L"]) -> "Canvas":
        """Returns the canvas with an EOS settled in some columns."""
        tokens = self.tokens.masked_fill(where, self.eos_ids[0])
        return replace(self, tokens=tokens, unsettled=self.unsettled & ~where)

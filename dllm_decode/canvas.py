"""The canvas: tokens of a batch of rows, prompts to the left, answers to the right.

Two rows, prompts of 5 and 3 tokens, gen_length 8, block_length 4; the second block is open:

    column     0   1   2   3   4 | 5   6   7   8 | 9  10  11  12
    row 0     [     prompt      ]|[   answer     |               ]
    row 1     pad pad [ prompt  ]|[   answer     |               ]
    position                       0   1   2   3   4   5   6   7
                                 |<---------- region ---------->|
                                 |<-- block 0 -->|<-- block 1 ->|
                                                 |<-- window -->|

    canvas     all of it: B rows of L columns.
    column     an absolute place in the canvas, the same for all rows.
    position   a place in the answer region, counted from its first column.
    region     the columns of the answers; all rows' regions begin at the same column.
    block      positions that are decoded together; one block is open at a time, or, if the block
               schedule says so, several: their phase, all of the region, then is what is called
               the open block here, and `opened` says which of its positions are open.
    window     positions that a sampler sees: the open block, from there to the end of the region,
               or all of the region (`Sampler.scope`).
    slot       the place of a column in the key-value cache: slot n holds the key and value that the
               last forward which computed column n wrote there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import count
from operator import or_

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.prompts import check_prompt, check_templates
from dllm_decode.sizes import round_up

_LAYOUTS = count()


@dataclass(frozen=True)
class Block:
    """Consecutive answer positions that are decoded together.

    Attributes:
        start: First answer position.
        end: First answer position behind the block.
    """

    start: int
    end: int


@dataclass(frozen=True)
class Canvas:
    """Immutable tokens of a batch: left-padded prompts, then the answer region.

    Columns are absolute; positions count from the first column of the answer region. All rows
    share that column. A block-causal model wants blocks to start at multiples of its block length;
    there each row's region begins with the tail of its prompt that does not fill a block. Where
    rows join others, the region begins with the block that is next, and what a row has of its
    answer lies before it.

    Attributes:
        tokens: All columns.
        fixed: Answer positions that hold a token from the start and are never written.
        pads: Columns of left padding.
        lead: Position at which the row's own answer begins: prompt tokens at the start of the
            region or, negative, answer tokens before it.
        ends: Answer positions that belong to the row; later ones only fill up the batch.
        running: Rows that are still decoded.
        rows: The row's index in the batch it was made for; stays with it when rows are taken.
        gen_length: Answer length in tokens, without `lead`.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer; the first fills what lies behind it.
        padded: Whether any row of the original batch has columns that are not its own.
        span: Columns that hold all of any row; fewer than there are where rows of different depths
            have joined.
        layout: Number of this arrangement of rows. Canvases of the same number have the same rows,
            pads, leads and ends; only their tokens differ, and which rows run.
        truncates: Whether a committed EOS ends the answer at once, masks before it or not.
        is_aligned: Whether each row's positions end where its answer does. On a block-causal model
            `ends` may be later: its last block is filled up.
        opened: Positions whose masks a block schedule has opened; `None`: those of the open block.
        goes_on: Rows that take a further step in the open block, masks left or not; `None`: none.
        due: Blocks of open positions about which the block schedule decides in the next step, as
            `MultiBlock` and `AdaptiveBlocks` say; `None`: none.
    """

    tokens: Int[Tensor, "B L"]
    fixed: Bool[Tensor, "B R"]
    pads: Int[Tensor, " B"]
    lead: Int[Tensor, " B"]
    ends: Int[Tensor, " B"]
    running: Bool[Tensor, " B"]
    rows: Int[Tensor, " B"]
    gen_length: int
    mask_id: int
    eos_ids: tuple[int, ...]
    padded: bool
    span: int
    layout: int
    truncates: bool = False
    is_aligned: bool = True
    opened: Bool[Tensor, "B R"] | None = None
    goes_on: Bool[Tensor, " B"] | None = None
    due: Bool[Tensor, "B R"] | None = None

    @staticmethod
    def blank(
        prompts: Sequence[Sequence[int]],
        gen_length: int,
        *,
        mask_id: int,
        eos_ids: tuple[int, ...],
        templates: Sequence[Sequence[int]] = (),
        align: int = 1,
        truncates: bool = False,
        device: torch.device | str = "cpu",
    ) -> "Canvas":
        """Lays out prompts and masked answers.

        Args:
            prompts: Token ids, one sequence per row; lengths may differ.
            gen_length: Answer length in tokens.
            mask_id: The [MASK] token.
            eos_ids: Tokens that end an answer.
            templates: Per row the answer with its open positions at `mask_id`; shorter ones are
                continued with masks. Empty: everything is open.
            align: Block length of a block-causal model, else 1.
            truncates: Whether a committed EOS ends the answer at once.
            device: Where the tensors live.

        Raises:
            ValueError: If there is no prompt, a prompt is empty or contains `mask_id`, `gen_length`
                is not positive, or the templates do not fit.
        """
        if not prompts:
            raise ValueError("decode needs at least one prompt, got none.")
        for row, prompt in enumerate(prompts):
            check_prompt(prompt, mask_id, row=row)
        check_templates(templates, len(prompts), gen_length)
        templates = templates or [[]] * len(prompts)
        leads = [len(prompt) % align for prompt in prompts]
        ends = [round_up(lead + gen_length, align) for lead in leads]
        start = max(len(prompt) - lead for prompt, lead in zip(prompts, leads, strict=True))
        length = start + max(ends)
        tokens = torch.full((len(prompts), length), mask_id, dtype=torch.long)
        pads = [start + lead - len(prompt) for prompt, lead in zip(prompts, leads, strict=True)]
        for row, (prompt, template) in enumerate(zip(prompts, templates, strict=True)):
            written = [*prompt, *template]
            tokens[row, : pads[row]] = eos_ids[0]
            tokens[row, pads[row] : pads[row] + len(written)] = torch.tensor(written)
        tokens = tokens.to(device)
        return Canvas(
            tokens=tokens,
            fixed=tokens[:, start:] != mask_id,
            pads=torch.tensor(pads, device=device),
            lead=torch.tensor(leads, device=device),
            ends=torch.tensor(ends, device=device),
            running=torch.ones(len(prompts), dtype=torch.bool, device=device),
            rows=torch.arange(len(prompts), device=device),
            gen_length=gen_length,
            mask_id=mask_id,
            eos_ids=eos_ids,
            padded=max(pads) > 0,
            span=length,
            layout=next(_LAYOUTS),
            truncates=truncates,
            is_aligned=align == 1,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """Number of columns, L."""
        return self.tokens.shape[1]

    @property
    def region_length(self) -> int:
        """Number of answer positions, of all rows alike."""
        return self.fixed.shape[1]

    @property
    def start(self) -> int:
        """Column of answer position 0."""
        return self.length - self.region_length

    @cached_property
    def region(self) -> Int[Tensor, "B R"]:
        """Tokens at the answer positions."""
        return self.tokens[:, self.start :]

    @cached_property
    def masked(self) -> Bool[Tensor, "B R"]:
        """Answer positions of the row that are still [MASK]."""
        return (self.region == self.mask_id) & self._inside

    @cached_property
    def open_masks(self) -> Bool[Tensor, "B R"]:
        """Masked positions, without those that a block schedule has not opened yet."""
        return self.masked if self.opened is None else self.masked & self.opened

    @cached_property
    def committed(self) -> Int[Tensor, " B"]:
        """Answer tokens decided so far, at most `gen_length`."""
        return (self.ends - self.lead - self.masked.sum(-1)).clamp(max=self.gen_length)

    def blocks(self, block_length: int) -> Iterator[Block]:
        """Splits the answer region from left to right; the last block may be short."""
        for start in range(0, self.region_length, block_length):
            yield Block(start, min(start + block_length, self.region_length))

    def columns(self, block: Block) -> slice:
        """Returns the columns of a block."""
        return slice(self.start + block.start, self.start + block.end)

    def own_columns(self) -> Int[Tensor, "B Q"]:
        """Returns `span` consecutive columns of each row, all that are its own among them."""
        first = self.pads.clamp(max=self.length - self.span)
        return first[:, None] + torch.arange(self.span, device=first.device)

    def is_eos(self, tokens: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Says which of some tokens end an answer."""
        # One comparison a token: a tensor of them would have to be sent to the device every step.
        return reduce(or_, (tokens == token for token in self.eos_ids))

    @cached_property
    def unfinished(self) -> Bool[Tensor, "B R"]:
        """Masked positions of the answer itself, without what fills up its last block."""
        if self.is_aligned:
            return self.masked
        positions = torch.arange(self.region_length, device=self.tokens.device)
        return self.masked & (positions < self.lead[:, None] + self.gen_length)

    def num_open(self, block: Block) -> Int[Tensor, " B"]:
        """Counts the masks of running rows in a block; at least 1 in rows that go on."""
        masks = self.masked[:, block.start : block.end].sum(-1)
        masks = masks if self.goes_on is None else torch.maximum(masks, self.goes_on.long())
        return masks * self.running

    def take(self, rows: Int[Tensor, " N"]) -> "Canvas":
        """Returns some rows."""
        return replace(
            self,
            tokens=self.tokens[rows],
            fixed=self.fixed[rows],
            pads=self.pads[rows],
            lead=self.lead[rows],
            ends=self.ends[rows],
            running=self.running[rows],
            rows=self.rows[rows],
            layout=next(_LAYOUTS),
            opened=None if self.opened is None else self.opened[rows],
            goes_on=None if self.goes_on is None else self.goes_on[rows],
            due=None if self.due is None else self.due[rows],
        )

    def put(self, part: "Canvas") -> "Canvas":
        """Returns this canvas with the rows of a part brought up to date."""
        tokens, running = self.tokens.clone(), self.running.clone()
        index = torch.searchsorted(self.rows, part.rows)
        tokens[index], running[index] = part.tokens, part.running
        return replace(self, tokens=tokens, running=running)

    def write(self, start: int, where: Bool[Tensor, "B W"], tokens: Int[Tensor, "B W"]) -> "Canvas":
        """Returns the canvas with tokens written in the window that begins at position `start`."""
        written = self.tokens.clone()
        window = written[:, self.start + start : self.start + start + where.shape[1]]
        window.copy_(torch.where(where, tokens, window))
        return self._with_tokens(written)

    def stop_at_eos(self) -> "Canvas":
        """Stops rows whose answer has ended and fills what lies behind the end.

        An answer has ended when an EOS stands in it with no mask before. An EOS of the prompt does
        not count, nor one in a row whose tokens may still be edited.
        """
        ended = self._eos & (self.masked.cumsum(-1) == 0)
        stopped = ended.any(-1) & self.running
        stopped = stopped if self.goes_on is None else stopped & ~self.goes_on
        # Only the host's own memory can be asked for free.
        if stopped.device.type == "cpu" and not stopped.any():
            return self
        return self.stop_rows(stopped)

    def stop_rows(self, where: Bool[Tensor, " B"]) -> "Canvas":
        """Stops some rows and fills what is left of their answers."""
        filled = self._fill(self.masked & where[:, None])
        return replace(filled, running=self.running & ~where)

    def truncate_at_eos(self, *, keeps_committed: bool = False) -> "Canvas":
        """Writes an EOS over what lies behind the first EOS of each running row, if it truncates.

        Given tokens stay; masks before it stay too, and are still decoded.

        Args:
            keeps_committed: Whether committed tokens stay too, as for a sampler that edits them.
        """
        if not self.truncates:
            return self
        eos = self._eos
        behind = (eos.cumsum(-1) > eos.long()) & self.running[:, None]
        return self._fill(behind & (self.masked if keeps_committed else self._inside & ~self.fixed))

    @property
    def has_eos(self) -> Bool[Tensor, " B"]:
        """Rows with an EOS in their answer, masks before it or not."""
        return self._eos.any(-1)

    @cached_property
    def _eos(self) -> Bool[Tensor, "B R"]:
        """Answer positions of the row that hold an EOS."""
        return self.is_eos(self.region) & self._inside

    @cached_property
    def _inside(self) -> Bool[Tensor, "B R"]:
        """Answer positions of the row's own answer, as far as it lies in the region."""
        positions = torch.arange(self.region_length, device=self.tokens.device)
        return (positions >= self.lead[:, None]) & (positions < self.ends[:, None])

    def with_opened(self, opened: Bool[Tensor, "B R"], due: Bool[Tensor, "B R"] | None) -> "Canvas":
        """Returns the canvas with what a block schedule has opened; see `opened` and `due`."""
        canvas = replace(self, opened=opened, due=due)
        vars(canvas).update(region=self.region, masked=self.masked, _inside=self._inside)
        return canvas

    def _fill(self, where: Bool[Tensor, "B R"]) -> "Canvas":
        written = self.tokens.clone()
        written[:, self.start :].masked_fill_(where, self.eos_ids[0])
        return self._with_tokens(written)

    def _with_tokens(self, tokens: Int[Tensor, "B L"]) -> "Canvas":
        canvas = replace(self, tokens=tokens)
        # Whatever the tokens are: spares a step some small operations.
        vars(canvas)["_inside"] = self._inside
        return canvas

    def answers(self) -> Int[Tensor, "B G"]:
        """Returns each row's answer, `gen_length` tokens."""
        columns = self.start + torch.arange(self.gen_length, device=self.tokens.device)
        return self.tokens.gather(1, columns + self.lead[:, None])

    def without_given(self) -> "Canvas":
        """Returns the canvas with [MASK] for prompts and given tokens, as guidance sees it."""
        given = torch.ones_like(self.tokens, dtype=torch.bool)
        given[:, self.start :] = self.fixed
        return self._with_tokens(self.tokens.masked_fill(given, self.mask_id))

    def behind(self, position: int) -> "Canvas":
        """Returns the canvas with a region that begins at a position, all before it decided."""
        return replace(
            self,
            fixed=self.fixed[:, position:],
            lead=self.lead - position,
            ends=self.ends - position,
            layout=next(_LAYOUTS),
            opened=None,
            goes_on=None,
            due=None,
        )

    @staticmethod
    def joined(parts: Sequence["Canvas"]) -> "Canvas":
        """Returns the rows of several canvases, in the order of `rows`, regions aligned.

        Columns that no row has as its own are left out.
        """
        start = max(int((part.start - part.pads).max()) for part in parts)
        width = max(int(part.ends.max()) for part in parts)
        tokens, fixed, pads = zip(*(part._placed(start, width) for part in parts), strict=True)
        ends, lefts = torch.cat([part.ends for part in parts]), torch.cat(pads)
        whole = replace(
            parts[0],
            tokens=torch.cat(tokens),
            fixed=torch.cat(fixed),
            pads=lefts,
            lead=torch.cat([part.lead for part in parts]),
            ends=ends,
            running=torch.cat([part.running for part in parts]),
            rows=torch.cat([part.rows for part in parts]),
            layout=next(_LAYOUTS),
            padded=bool(((lefts > 0) | (ends < width)).any()),
            span=int((start - lefts + ends).max()),
        )
        return whole.take(whole.rows.argsort())

    def _placed(
        self, start: int, width: int
    ) -> tuple[Int[Tensor, "B _"], Bool[Tensor, "B _"], Int[Tensor, " B"]]:
        """Returns tokens, `fixed` and `pads` with another start and width of the region."""
        left, right = start - self.start, width - self.region_length
        tokens = pad(self.tokens, (left, 0), value=self.eos_ids[0])
        tokens = pad(tokens, (0, right), value=self.mask_id)
        return tokens, pad(self.fixed, (0, right)), self.pads + left

"""The only object that calls the model, so that the bill cannot be cheated."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.bill import Bill
from dllm_decode.caches import CachePolicy, Columns, Forward
from dllm_decode.caches.store import Store
from dllm_decode.canvas import Block, Canvas
from dllm_decode.layouts import Branches, pack, unpack, with_shadow
from dllm_decode.models.base import Inputs, MaskPredictor
from dllm_decode.models.causal import CausalTarget, Past, Reading
from samplers.base import Sampler, View
from samplers.noise import mix, row_keys
from samplers.statistics import draw, gather, log_normaliser, most_likely


class Session:
    """Runs the model for one decode and counts what that costs.

    The logit shift, padding and block-causal attention are settled here; samplers, caches and
    verifiers never meet them.

    Attributes:
        temperature: Of the views; 0 is greedy.
        view: The view made last, of the rows that took a step; for observers.
        bill: What was done for each row so far.
        foreseen: For a verifier to keep what it knows beyond the open block: per row the tokens of
            a state of the canvas, and the logits of the block that is next there.
    """

    def __init__(
        self,
        model: MaskPredictor,
        canvas: Canvas,
        cache: CachePolicy,
        *,
        temperature: float,
        seed: int,
        num_branches: int = 1,
    ) -> None:
        """Allocates the memory.

        Args:
            model: The mask predictor.
            canvas: The whole batch.
            cache: Says which columns are computed.
            temperature: Of the views.
            seed: Of the views' noise.
            num_branches: States of one row that may be rows of a forward. Beside a row's own slots,
                each further one has slots of its own in the memory, as many as the row.
        """
        self._model = model
        self._cache = cache
        self.temperature = temperature
        self._seed = seed
        slots = (len(canvas) * num_branches, canvas.length)
        memory = model.new_memory(*slots) if cache.needs_memory else None
        self._store = Store(memory, canvas)
        self._banned = torch.tensor(sorted({model.mask_id, *model.banned_ids}), device=model.device)
        self._step = 0
        self._requests = canvas.rows
        self.view: View | None = None
        self.bill = Bill(len(canvas), model.device)
        self.foreseen: dict[int, tuple[Int[Tensor, " L"], Float[Tensor, "W V"]]] = {}

    @property
    def forgets_blocks(self) -> bool:
        """Whether logits are the same whichever block is open: nothing depends on where it began.

        So it is without a cache, and on block-causal models, where every cache that depends on the
        committed tokens alone is exact.
        """
        return bool(self._model.causal_block_length) or not self._cache.needs_memory

    def open(self) -> None:
        """Starts a block: the cache counts its forwards anew."""
        self._step = 0

    def rearrange(
        self, canvas: Canvas, shifts: Mapping[int, int], requests: Mapping[int, int]
    ) -> None:
        """Goes on with another canvas, between two blocks.

        Args:
            canvas: Its rows are numbered like those of the first one.
            shifts: By how many columns the rows that stay have moved.
            requests: For the other rows, which are new, whose noise each has: that of the row of
                this number. Their bill starts at 0.
        """
        self._store.rearrange(canvas, shifts)
        self.foreseen.clear()
        rows = torch.tensor(list(requests), device=canvas.rows.device, dtype=torch.long)
        numbers = torch.tensor(list(requests.values()), device=rows.device, dtype=torch.long)
        self._requests = self._requests.index_copy(0, rows, numbers)
        self.bill.reset(rows)

    def look(
        self,
        canvas: Canvas,
        block: Block,
        sampler: Sampler,
        *,
        branches: Branches | None = None,
    ) -> View:
        """Runs one forward and returns what the sampler may see of it.

        Args:
            canvas: The rows to look at.
            block: The open block.
            sampler: Says how much of the canvas it must see.
            branches: Where `canvas` holds several states of one row: which is which. In the layout
                "rows" their numbers are below `num_branches`.
        """
        window = _window(canvas, block, sampler)
        logits = self._predict(canvas, canvas.columns(window), sampler.shadow, branches)
        self._step += 1
        width = window.end - window.start
        shown = slice(window.start, window.end)
        shadow = None
        if sampler.shadow:
            shadow = _probability(
                logits[:, width:], canvas.region[:, shown], canvas.masked[:, shown]
            )
        self.view = self.show(canvas, block, sampler, logits=logits[:, :width], shadow=shadow)
        return self.view

    def show(
        self,
        canvas: Canvas,
        block: Block,
        sampler: Sampler,
        *,
        logits: Float[Tensor, "B W V"],
        shadow: Float[Tensor, "B W"] | None,
    ) -> View:
        """Returns what the sampler would see of a canvas if a forward had given these logits."""
        window = _window(canvas, block, sampler)
        columns = slice(window.start, window.end)
        masked = canvas.masked[:, columns]
        positions = torch.arange(window.start, window.end, device=masked.device)
        in_block = (positions >= block.start) & (positions < block.end)
        return View(
            tokens=canvas.region[:, columns],
            logits=logits,
            masked=masked,
            eligible=masked & in_block & canvas.running[:, None],
            start=window.start,
            gen_length=canvas.gen_length,
            committed=canvas.committed,
            temperature=self.temperature,
            keys=row_keys(self._seed, self._requests[canvas.rows], canvas.committed),
            lead=canvas.lead,
            block=slice(block.start - window.start, block.end - window.start),
            shadow=shadow,
        )

    def consult(
        self,
        target: CausalTarget,
        canvas: Canvas,
        past: Past,
        tokens: Int[Tensor, "B Q"],
        counts: Int[Tensor, " B"],
        *,
        num_logits: int,
    ) -> Reading:
        """Lets a causal target read on; see `CausalTarget.read`. Banned tokens are at -inf."""
        reading = target.read(past, tokens, counts, num_logits=num_logits)
        self.bill.add_target_forward(canvas.rows)
        logits = reading.logits[..., : target.num_shared_ids]
        banned = self._banned[self._banned < logits.shape[-1]]
        return reading._replace(logits=logits.index_fill(-1, banned, -torch.inf))

    def count_drafts(
        self,
        canvas: Canvas,
        *,
        drafted: Int[Tensor, " B"] | int = 0,
        accepted: Int[Tensor, " B"] | int = 0,
    ) -> None:
        """Notes how many tokens were drafted for each row, and how many of them accepted."""
        self.bill.drafted[canvas.rows] += drafted
        self.bill.accepted[canvas.rows] += accepted

    def choose(
        self, canvas: Canvas, first: Int[Tensor, " B"], logits: Float[Tensor, "B N V"]
    ) -> Int[Tensor, "B N"]:
        """Returns each position's most likely token, or a draw at a temperature above 0.

        The noise of a position depends on the seed, the row and the position alone.

        Args:
            canvas: The rows.
            first: Answer position, in each row, of the first logits.
            logits: Of consecutive positions.
        """
        if self.temperature == 0.0:
            return most_likely(logits)
        keys = self.position_keys(canvas, first, logits.shape[1])
        return draw(logits, self.temperature, keys)

    def position_keys(
        self, canvas: Canvas, first: Int[Tensor, " B"], num_positions: int
    ) -> Int[Tensor, "B N"]:
        """Returns noise keys of consecutive positions: of seed, row and position alone."""
        positions = first[:, None] + torch.arange(num_positions, device=first.device)
        positions = positions - canvas.lead[:, None]
        keys = row_keys(self._seed, self._requests[canvas.rows], torch.zeros_like(first))
        return mix(keys[:, None] ^ mix(positions))

    def _predict(
        self, canvas: Canvas, window: slice, shadow: bool, branches: Branches | None
    ) -> Float[Tensor, "B _ V"]:
        """Returns logits that predict the window's columns, banned tokens at -inf.

        With a shadow, those that predict the same columns without seeing them follow.
        """
        model, shift = self._model, self._model.logit_shift
        # Nothing in the window sees what is behind its block: leaving it out changes nothing.
        end = window.stop if model.causal_block_length else canvas.length
        needed = slice(max(0, window.start - shift), window.stop)
        forward = self._store.forward(canvas, needed, end=end, shift=shift, step=self._step)
        chosen = self._cache.recompute(forward)
        columns = _all(canvas, end)[:, chosen] if isinstance(chosen, slice) else chosen
        columns = columns.contiguous()
        predictors = torch.arange(window.start - shift, window.stop - shift, device=model.device)
        # No column predicts column 0 of a shifted model; its own logits stand in.
        predictors = predictors.clamp(min=0).repeat(len(canvas), 1)
        wanted = torch.searchsorted(columns, predictors).clamp(max=columns.shape[1] - 1)
        memory = self._store.memory(end)
        inputs = Inputs(
            tokens=canvas.tokens.gather(1, columns),
            positions=(columns - canvas.pads[:, None]).clamp(min=0),
            wanted=wanted,
            attend=self._attend(forward, chosen, columns),
            memory=memory,
            slots=None if memory is None else chosen,
        )
        if shadow:
            inputs = with_shadow(inputs, window, canvas.mask_id)
        if branches is None or branches.layout == "rows":
            inputs = replace(inputs, rows=self._store.rows(canvas, branches))
            logits = self._run(canvas, inputs)
        else:
            inputs = inputs if memory is None else replace(inputs, slots=columns)
            logits = self._run_packed(canvas, inputs, branches, num_keys=end)
        self._store.record(forward, columns, branches)
        if isinstance(chosen, slice) and _covers(chosen.indices(end), needed, shift):
            return logits
        known = columns.gather(1, wanted) == predictors
        return _certain_where(logits, ~known, canvas.tokens[:, window])

    def _run_packed(
        self, canvas: Canvas, inputs: Inputs, branches: Branches, *, num_keys: int
    ) -> Float[Tensor, "B _ V"]:
        """Runs one forward in which all states of a row are one row."""
        present = canvas.take((branches.places == 0).nonzero().squeeze(-1))
        rows = torch.searchsorted(present.rows, canvas.rows)
        depth, width = int(branches.places.max()) + 1, inputs.tokens.shape[1]
        with_memory = inputs.memory is not None
        packed = pack(
            inputs,
            rows,
            branches.places,
            size=(len(present), depth),
            num_keys=num_keys if with_memory else width,
            first_free=canvas.length if with_memory else width,
        )
        packed = replace(
            packed,
            memory=self._store.memory(canvas.length + (depth - 1) * width),
            rows=self._store.rows(present, None),
        )
        return unpack(self._run(present, packed), rows, branches.places, depth)

    def _run(self, canvas: Canvas, inputs: Inputs) -> Float[Tensor, "B _ V"]:
        """Calls the model, and puts the call on the bill of the canvas' rows."""
        logits = self._model.predict(inputs)
        self.bill.add_forward(canvas.rows, inputs.tokens.shape[1])
        return logits.index_fill_(-1, self._banned, -torch.inf)

    def _attend(
        self, forward: Forward, chosen: Columns, columns: Int[Tensor, "B Q"]
    ) -> Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None:
        """Hides padding and, from a block-causal model, later blocks."""
        canvas, length = forward.canvas, self._model.causal_block_length
        keys = _all(canvas, forward.end) if self._cache.needs_memory else columns
        pads = canvas.pads[:, None]
        present = None
        if canvas.padded:
            present = ((keys >= pads) & (keys < canvas.start + canvas.ends[:, None]))[:, None]
        first = chosen.indices(forward.end)[0] if isinstance(chosen, slice) else 0
        if not length or (not canvas.padded and first // length == (forward.end - 1) // length):
            # Bidirectional, or queries of the last block that there is.
            return present
        earlier = ((keys - pads) // length)[:, None] <= ((columns - pads) // length)[..., None]
        return earlier if present is None else earlier & present


def _window(canvas: Canvas, block: Block, sampler: Sampler) -> Block:
    """Returns the answer positions that a sampler sees while a block is open."""
    first = 0 if sampler.scope == "answer" else block.start
    return Block(first, block.end if sampler.scope == "block" else canvas.region_length)


def _all(canvas: Canvas, end: int) -> Int[Tensor, "B K"]:
    return torch.arange(end, device=canvas.tokens.device).expand(len(canvas), -1)


def _covers(chosen: tuple[int, int, int], needed: slice, shift: int) -> bool:
    start, stop, _ = chosen
    return bool(start <= needed.start and needed.stop - shift <= stop)


def _certain_where(
    logits: Float[Tensor, "B W V"], where: Bool[Tensor, "B W"], tokens: Int[Tensor, "B W"]
) -> Float[Tensor, "B W V"]:
    """Makes the token in place the only possible one, in place."""
    index = tokens[..., None]
    kept = logits.gather(-1, index).masked_fill_(where[..., None], 0.0)
    return logits.masked_fill_(where[..., None], -torch.inf).scatter_(-1, index, kept)


def _probability(
    logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"], masked: Bool[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Returns the probability of each token in place, 0 where there is none."""
    normaliser = log_normaliser(logits, most_likely(logits))
    logs = gather(logits, tokens.masked_fill(masked, 0)) - normaliser
    return logs.exp().masked_fill(masked, 0.0)

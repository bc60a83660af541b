"""The only object that calls the model, so that its cost cannot be counted wrongly."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, Columns
from dllm_decode.caches.by_row import Asked, Pace, ask
from dllm_decode.caches.ledger import CacheLedger
from dllm_decode.canvas import Block, Canvas
from dllm_decode.cost import Cost
from dllm_decode.geometry import ForwardGeometry, read_columns, window_of
from dllm_decode.lookahead import Lookahead, Pending
from dllm_decode.models.base import ForwardInputs, MaskPredictor
from dllm_decode.models.targets.causal import CausalTarget, Past, Reading
from dllm_decode.packing import Arrangement, Branches, pack, unpack, with_leave_one_out
from dllm_decode.round_reads import RoundReads
from samplers.base import Sampler
from samplers.logits.noise import position_keys, row_keys
from samplers.logits.statistics import certain_where, probability
from samplers.logits.summary import Summary
from samplers.logits.truncation import Truncation
from samplers.view import View

_NUMBERS = count()


class Session:
    """Runs the model for one decode and counts what that costs.

    The logit shift, padding and block-causal attention are settled here; samplers, caches and
    verifiers never meet them.

    Attributes:
        temperature: Of the views; 0 is greedy.
        view: The view made last, of the rows that took a step; for observers.
        cost: What was done for each row so far.
        number: Tells the decodes of a process apart, for observers.
        requests: Which prompt each row has: whose noise it is given, and what observers know it by.
        blocks: The block schedule.
        block_length: Tokens per block.
        reach: Positions of the open block outside which no mask is open; `None`: all of it.
        lookahead: For a verifier to keep what it knows beyond the open block, per row.
        pending: The same, of the round before, for rows that may have finished the block.
        arrangement: For a verifier to keep how the states of its last forward stood in it.
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
        truncation: Truncation | None = None,
        cfg_scale: float = 0.0,
        banned_ids: tuple[int, ...] = (),
        deferred_ids: tuple[int, ...] = (),
        blocks: BlockSchedule = Sequential(),
        block_length: int = 1,
    ) -> None:
        """Allocates the key-value cache.

        Args:
            model: The mask predictor.
            canvas: The whole batch.
            cache: Says which columns are computed.
            temperature: Of the views.
            seed: Of the views' noise.
            num_branches: States of one row that may be rows of a forward. Beside a row's own slots,
                each further one has slots of its own in the cache, as many as the row.
            truncation: What is done to logits before samplers see them, `temperature` included;
                `None`: nothing, and `temperature` acts on draws alone.
            cfg_scale: Strength of classifier-free guidance; 0: none.
            banned_ids: Tokens that are never proposed, beside the model's own.
            deferred_ids: Tokens whose proposals come last.
            blocks: Says which positions are open.
            block_length: Tokens per block, for the schedule.
        """
        self.blocks = blocks
        self.block_length = block_length
        self.reach: Block | None = None
        self._paces: dict[int, Pace] = {}
        self._model = model
        self._cache = cache
        self._truncation = truncation
        self._cfg_scale = cfg_scale
        self._deferred_ids = deferred_ids
        # What is truncated is divided by the temperature already.
        self.temperature = temperature if truncation is None else float(temperature > 0.0)
        slots = (len(canvas) * num_branches, canvas.length)
        kv_cache = model.new_kv_cache(*slots) if cache.needs_kv_cache else None
        self._ledger = CacheLedger(kv_cache, canvas, with_ledger=cache.reads_history)
        self._banned_ids = sorted({model.mask_id, *model.banned_ids, *banned_ids})
        self._banned = torch.tensor(self._banned_ids, device=model.device)
        self._step = 0
        self.number = next(_NUMBERS)
        self._reads = RoundReads()
        self._seed = seed
        self._keys = row_keys(seed, canvas.rows)
        self._frame: ForwardGeometry | None = None
        self.requests = canvas.rows
        self.view: View | None = None
        self.cost = Cost(len(canvas), model.device)
        self.lookahead: dict[int, Lookahead] = {}
        self.pending: Pending | None = None
        self.arrangement: Arrangement | None = None

    @property
    def forgets_blocks(self) -> bool:
        """Whether logits are the same whichever block is open: nothing depends on where it began.

        So it is without a cache, and on block-causal models, where every cache that depends on the
        committed tokens alone is exact.
        """
        return bool(self._model.causal_block_length) or not self._cache.needs_kv_cache

    def open(self) -> None:
        """Starts a block: the cache counts its forwards anew."""
        self._step = 0
        self._paces = {}
        self.reach = None

    def narrow(self, reaches: Mapping[int, Block]) -> None:
        """Says, before a round, outside which positions of the open block rows have no open mask.

        Where the schedule says that a row has opened or finished a block, the cache counts the
        row's forwards anew.

        Args:
            reaches: Of each row of the round, by `Canvas.rows` and in this order.
        """
        paces, self._paces = self._paces, {}
        for row, reach in reaches.items():
            last = paces.get(row)
            is_new = last is None or self.blocks.restarts(last.reach, reach)
            self._paces[row] = Pace(reach, 0 if last is None or is_new else last.step)
        starts = min(reach.start for reach in reaches.values())
        self.reach = Block(starts, max(reach.end for reach in reaches.values()))

    def rearrange(
        self, canvas: Canvas, shifts: Mapping[int, int], requests: Mapping[int, int]
    ) -> None:
        """Goes on with another canvas, between two blocks.

        Args:
            canvas: Its rows are numbered like those of the first one.
            shifts: By how many columns the rows that stay have moved.
            requests: For the other rows, which are new, whose noise each has: that of the row of
                this number. Their cost starts at 0.
        """
        self._ledger.rearrange(canvas, shifts)
        self.lookahead.clear()
        self.pending = None
        rows = torch.tensor(list(requests), device=canvas.rows.device, dtype=torch.long)
        numbers = torch.tensor(list(requests.values()), device=rows.device, dtype=torch.long)
        self.requests = self.requests.index_copy(0, rows, numbers)
        self._keys = row_keys(self._seed, self.requests)
        self.cost.reset(rows)

    def forward(
        self,
        canvas: Canvas,
        block: Block,
        sampler: Sampler,
        *,
        lean: bool = False,
        branches: Branches | None = None,
    ) -> View:
        """Runs one forward and returns what the sampler may see of it.

        Args:
            canvas: The rows to look at.
            block: The open block.
            sampler: Says how much of the canvas it must see.
            lean: Whether logits that the sampler does not read may be left out.
            branches: Where `canvas` holds several states of one row: which is which. In the layout
                "rows" their numbers are below `num_branches`.
        """
        if branches is not None:
            self._ledger.know(canvas, branches.ids)
        window = window_of(canvas, block, sampler)
        asked = read_columns(canvas, block, sampler, self.reach) if lean else None
        logits = self._predict(
            canvas, canvas.columns(window), asked, sampler.leave_one_out, branches
        )
        self._step += 1
        self._paces = {row: Pace(reach, step + 1) for row, (reach, step) in self._paces.items()}
        width = window.end - window.start
        shown = slice(window.start, window.end)
        leave_one_out = None
        if sampler.leave_one_out:
            leave_one_out = _probability(
                logits[:, width:], canvas.region[:, shown], canvas.masked[:, shown]
            )
            logits = logits[:, :width]
        self.view = self.view_of(
            canvas, block, sampler, logits=logits, asked=asked, leave_one_out=leave_one_out
        )
        return self.view

    def view_of(
        self,
        canvas: Canvas,
        block: Block,
        sampler: Sampler,
        *,
        logits: Float[Tensor, "B N V"],
        leave_one_out: Float[Tensor, "B W"] | None,
        asked: Int[Tensor, "B N"] | None = None,
    ) -> View:
        """Returns what the sampler would see of a canvas if a forward had given these logits."""
        window = window_of(canvas, block, sampler)
        columns = slice(window.start, window.end)
        masked = canvas.open_masks[:, columns]
        eligible = masked & canvas.running[:, None]
        if window != block:
            eligible[:, : block.start - window.start] = False
            eligible[:, block.end - window.start :] = False
        return View(
            tokens=canvas.region[:, columns],
            computed=Summary(logits, asked),
            masked=masked,
            eligible=eligible,
            start=window.start,
            gen_length=canvas.gen_length,
            committed=canvas.committed,
            temperature=self.temperature,
            keys=self._keys[canvas.rows],
            lead=canvas.lead,
            block=slice(block.start - window.start, block.end - window.start),
            reads_committed=sampler.reads_committed,
            leave_one_out=leave_one_out,
            deferred_ids=self._deferred_ids,
        )

    def read_target(
        self,
        target: CausalTarget,
        canvas: Canvas,
        past: Past,
        tokens: Int[Tensor, "B Q"],
        counts: Int[Tensor, " B"],
        *,
        num_logits: int,
        first_logits: Int[Tensor, " B"] | None = None,
        parents: Int[Tensor, "B N"] | None = None,
    ) -> Reading:
        """Lets a causal target read on; see `CausalTarget.read`. Banned tokens are at -inf."""
        reading = target.read(
            past,
            tokens,
            counts,
            num_logits=num_logits,
            first_logits=first_logits,
            parents=parents,
        )
        self.cost.add_target_forward(canvas.rows)
        logits = reading.logits[..., : target.num_shared_ids]
        self._reads.require_finite(logits, target.name)
        banned = self._banned[: bisect_left(self._banned_ids, logits.shape[-1])]
        return reading._replace(logits=logits.index_fill_(-1, banned, -torch.inf))

    def forbid(self, found: Bool[Tensor, "*shape"], culprit: object, duty: str) -> None:
        """Notes where a plug-in broke its contract; the next `sync` raises if it is anywhere."""
        self._reads.forbid(found, culprit, duty)

    def ask(self, canvas: Canvas, *numbers: Int[Tensor, " B"]) -> None:
        """Has further numbers of each row read at the next `sync`; see `answers`."""
        self._reads.ask(self.row_ids(canvas), *numbers)

    def answers(self, ids: list[int]) -> list[list[int]]:
        """Returns the numbers of some rows that were asked for last."""
        return self._reads.answers(ids)

    def sync(self, *numbers: Shaped[Tensor, " B"]) -> list[list[int]]:
        """Reads numbers of each row after a round: the one time that the host waits for it.

        Raises:
            RuntimeError: If a plug-in broke its contract in this round.
        """
        return self._reads.sync(*numbers)

    def row_ids(self, canvas: Canvas) -> list[int]:
        """Returns the canvas' rows; the host waits for them only when rows have come or left."""
        return self._ledger.ids(canvas)

    def count_drafts(
        self,
        canvas: Canvas,
        *,
        drafted: Int[Tensor, " B"] | None = None,
        accepted: Int[Tensor, " B"] | None = None,
    ) -> None:
        """Notes how many tokens were drafted for each row, and how many of them accepted."""
        self.cost.add_drafts(canvas.rows, drafted=drafted, accepted=accepted)

    def position_keys(
        self, canvas: Canvas, first: Int[Tensor, " B"], num_positions: int
    ) -> Int[Tensor, "B N"]:
        """Returns noise keys of consecutive positions: of seed, row and position alone."""
        positions = first[:, None] + torch.arange(num_positions, device=first.device)
        positions = positions - canvas.lead[:, None]
        return position_keys(self._keys[canvas.rows], torch.zeros_like(first), positions)

    def _predict(
        self,
        canvas: Canvas,
        window: slice,
        asked: Int[Tensor, "B N"] | None,
        leave_one_out: bool,
        branches: Branches | None,
    ) -> Float[Tensor, "B _ V"]:
        """Returns logits that predict the window's asked columns, banned tokens at -inf.

        With a shadow, those that predict the same columns without seeing them follow.
        """
        model = self._model
        reach = window if self.reach is None else canvas.columns(self.reach)
        # Nothing in the window sees what is behind its block: leaving it out changes nothing.
        end = reach.stop if model.causal_block_length else canvas.length
        asked_of = self._asked(canvas, reach, end)
        chosen, hidden = ask(self._cache, asked_of)
        self._check_columns(chosen, end)
        if self._frame is None or not self._frame.fits(canvas, chosen, window, end, hidden):
            with_kv_cache = self._cache.needs_kv_cache
            self._frame = ForwardGeometry.of(
                model, canvas, chosen, window, end, with_kv_cache=with_kv_cache, hidden=hidden
            )
        frame = self._frame
        logits = self._logits(canvas, frame, asked, leave_one_out, branches)
        if self._cfg_scale:
            blind = self._logits(canvas.without_given(), frame, asked, leave_one_out, branches)
            logits = blind + (1.0 + self._cfg_scale) * (logits - blind)
        self._reads.require_finite(logits, model.name)
        logits = logits.index_fill_(-1, self._banned, -torch.inf)
        for one in asked_of:
            self._ledger.record(one.query, one.part(chosen), branches, one.rows)
        logits = logits if self._truncation is None else self._truncation(logits)
        if frame.known is None:
            return logits
        self._check_known(canvas, frame.known, window)
        tokens = _part(canvas.tokens[:, window], asked)
        return certain_where(logits, ~_part(frame.known, asked), tokens)

    def _asked(self, canvas: Canvas, reach: slice, end: int) -> list[Asked]:
        """Describes the next forward to the cache policy, once for the rows of each pace."""
        shift, paces = self._model.logit_shift, list(self._paces.values())
        if not self._cache.needs_kv_cache or len(set(paces)) <= 1:
            step = paces[0].step if paces else self._step
            needed = slice(max(0, reach.start - shift), reach.stop)
            query = self._ledger.query(canvas, needed, end=end, shift=shift, step=step)
            return [Asked(query)]
        found = []
        for pace in dict.fromkeys(paces):
            places = [place for place, other in enumerate(paces) if other == pace]
            rows = [row for row, other in self._paces.items() if other == pace]
            part = canvas.take(torch.tensor(places, device=canvas.tokens.device))
            columns = canvas.columns(pace.reach)
            query = self._ledger.query(
                part,
                slice(max(0, columns.start - shift), columns.stop),
                end=columns.stop if self._model.causal_block_length else end,
                shift=shift,
                step=pace.step,
                rows=rows,
            )
            found.append(Asked(query, places, rows))
        return found

    def _logits(
        self,
        canvas: Canvas,
        frame: ForwardGeometry,
        asked: Int[Tensor, "B N"] | None,
        leave_one_out: bool,
        branches: Branches | None,
    ) -> Float[Tensor, "B _ V"]:
        """Runs one forward; returns the logits of the columns that predict what is asked."""
        kv_cache = self._ledger.kv_cache(frame.end)
        inputs = ForwardInputs(
            tokens=frame.tokens(canvas),
            positions=frame.positions,
            wanted=_part(frame.wanted, asked),
            attend=frame.attend,
            kv_cache=kv_cache,
            slots=None if kv_cache is None else frame.slots,
        )
        if leave_one_out:
            inputs = with_leave_one_out(inputs, canvas.mask_id)
        if branches is None or branches.layout == "rows":
            inputs = replace(inputs, rows=self._ledger.rows(canvas, branches))
            return self._run(canvas, inputs)
        inputs = inputs if kv_cache is None else replace(inputs, slots=frame.columns)
        return self._run_packed(canvas, inputs, branches, num_keys=frame.end)

    def _check_columns(self, chosen: Columns, end: int) -> None:
        """Raises RuntimeError if a policy leaves out columns without saying so."""
        computes_all = isinstance(chosen, slice) and chosen == slice(0, end)
        if not self._cache.needs_kv_cache and not computes_all:
            raise RuntimeError(
                f"needs_kv_cache must be True in {self._cache!r}, since it leaves out columns: "
                f"it computes {chosen} of {end}."
            )

    def _check_known(self, canvas: Canvas, known: Bool[Tensor, "B W"], window: slice) -> None:
        """Checks that a policy computes what predicts the window's masks."""
        shown = slice(window.start - canvas.start, window.stop - canvas.start)
        duty = "compute every column that predicts a masked position"
        self.forbid(~known & canvas.open_masks[:, shown], self._cache, duty)

    def _run_packed(
        self, canvas: Canvas, inputs: ForwardInputs, branches: Branches, *, num_keys: int
    ) -> Float[Tensor, "B _ V"]:
        """Runs one forward in which all states of a row are one row."""
        present = canvas.take(torch.arange(branches.num_rows, device=canvas.rows.device))
        self._ledger.know(present, branches.ids[: branches.num_rows])
        rows = torch.searchsorted(present.rows, canvas.rows)
        depth, width = branches.depth, inputs.tokens.shape[1]
        with_kv_cache = inputs.kv_cache is not None
        packed = pack(
            inputs,
            rows,
            branches.places,
            size=(len(present), depth),
            num_keys=num_keys if with_kv_cache else width,
            first_free=canvas.length if with_kv_cache else width,
        )
        packed = replace(
            packed,
            kv_cache=self._ledger.kv_cache(canvas.length + (depth - 1) * width),
            rows=self._ledger.rows(present, None),
        )
        return unpack(self._run(present, packed), rows, branches.places, depth)

    def _run(self, canvas: Canvas, inputs: ForwardInputs) -> Float[Tensor, "B _ V"]:
        """Calls the model, and counts the call for the canvas' rows."""
        logits = self._model.predict(inputs)
        self.cost.add_forward(canvas, inputs.tokens.shape[1])
        return logits


def _part(values: Shaped[Tensor, "B W"], asked: Int[Tensor, "B N"] | None) -> Shaped[Tensor, "B _"]:
    return values if asked is None else values.gather(1, asked)


def _probability(
    logits: Float[Tensor, "B W V"], tokens: Int[Tensor, "B W"], masked: Bool[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Returns the probability of each token in place, 0 where there is none."""
    found = probability(logits, tokens.masked_fill(masked, 0))
    return found.masked_fill(masked, 0.0)

"""The one loop."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode import compatibility
from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.blocks.base import (
    Opening,
    Phase,
    require_measured,
    require_opening,
    require_overrides,
    with_openings,
)
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.caches.entry import EntryToken
from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor, fingerprint_of
from dllm_decode.observers import Observer, StepEvent
from dllm_decode.options import DecodeConfig, DecodeOptions
from dllm_decode.output import DecodeOutput
from dllm_decode.prompts import Prompt, Prompts, read_prompt, token_lists
from dllm_decode.session import Session
from dllm_decode.stopping import NeverStop, StopRule
from dllm_decode.verify import NoVerifier, Verifier
from samplers.base import Sampler
from samplers.state import take_state


@torch.inference_mode()
def decode(
    model: MaskPredictor,
    prompts: Prompts,
    sampler: Sampler,
    *,
    attention_mask: Int[Tensor, "B N"] | None = None,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    config: DecodeConfig = DecodeConfig(),
    templates: Sequence[Sequence[int]] = (),
    observers: Sequence[Observer] = (),
    stop: StopRule = NeverStop(),
    **options: Unpack[DecodeOptions],
) -> DecodeOutput:
    """Fills the answers to a batch of prompts by iterative unmasking.

    The answer is decoded block by block, left to right, unless `blocks` opens several at once. In
    each round the model is run once, `sampler` proposes which positions to commit, and `verifier`
    decides what is kept.

    Args:
        model: The mask predictor, see `MaskPredictor`.
        prompts: Token ids, one sequence per row; lengths may differ. Also a tensor with its
            `attention_mask`, or what a tokenizer of transformers returns.
        sampler: Which positions to commit, and with which token.
        attention_mask: Of prompts in a tensor: 0 where padding stands.
        cache: Which columns to recompute at each forward. Every choice but `NoCache` approximates.
        verifier: How proposals are checked. `NoVerifier` takes the sampler's word.
        blocks: Which positions are open: one block after another, or several blocks at once.
        config: The options of the decode.
        templates: Answers with some tokens given: per row, token ids with the model's `mask_id` at
            the open positions. Given tokens are never changed.
        observers: Called after each round with a `StepEvent`; for traces, streaming, progress bars.
        stop: Which rows stop early, beside those whose answer ends with an EOS.
        **options: Fields of `DecodeConfig`, each of which replaces that of `config`.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If sampler, cache, verifier, blocks, model and lengths do not fit together.
        RuntimeError: If the sampler leaves a running row with as many masks as before, beyond its
            stated bound, or another plug-in breaks its contract.
    """
    decoder = Decoder(model, sampler, cache, verifier, config.updated(**options), stop, blocks)
    started = time.perf_counter()
    canvas = decoder.blank(token_lists(prompts, attention_mask), templates)
    session = decoder.session(canvas)
    for block in decoder.blocks(canvas):
        canvas = finish_block(decoder, session, canvas, block, observers=observers)
    cost = session.cost
    return DecodeOutput(
        tokens=canvas.answers().cpu(),
        nfe=cost.nfe.cpu(),
        query_positions=cost.query_positions.cpu(),
        forwards=cost.forwards,
        target_nfe=cost.target_nfe.cpu(),
        target_forwards=cost.target_forwards,
        drafted=cost.drafted.cpu(),
        accepted=cost.accepted.cpu(),
        wall_s=time.perf_counter() - started,
        eos_ids=canvas.eos_ids,
    )


@dataclass(frozen=True)
class Decoder:
    """A model, the plug-ins and the config of one decode, checked against each other.

    Raises:
        ValueError: If they do not fit together.
    """

    model: MaskPredictor
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    config: DecodeConfig
    stop: StopRule = NeverStop()
    schedule: BlockSchedule = Sequential()

    def __post_init__(self) -> None:
        model, config = self.model, self.config
        compatibility.require_plugins(model, self.sampler, self.cache, self.verifier, self.schedule)
        self.sampler.check_model(name=model.name, fingerprint=fingerprint_of(model))
        self.sampler.check(
            model=model.name, gen_length=config.gen_length, block_length=self.block_length
        )
        compatibility.check(
            model, self.sampler, self.cache, verifier=self.verifier, blocks=self.schedule
        )
        self.verifier.check(model)
        require_overrides(self.schedule)
        self.schedule.check(model)
        _check_options(model, self.cache, self.verifier, config)

    @property
    def rule(self) -> Sampler:
        """The sampler, behind what the cache policy commits by itself."""
        commits_entry = self.cache.commits_entry and self.model.logit_shift > 0
        return EntryToken(self.sampler) if commits_entry else self.sampler

    @property
    def block_length(self) -> int:
        """Tokens per block."""
        model, own, asked = self.model, self.schedule.block_length, self.config.block_length
        if own is not None and asked not in (None, own):
            raise ValueError(f"block_length must be said once, got {asked} and {self.schedule!r}.")
        config = self.config if own is None else replace(self.config, block_length=own)
        return config.resolved_block_length(model.causal_block_length, model=model.name)

    def blocks(self, canvas: Canvas) -> Iterator[Block]:
        """Returns the schedule's phases, or what the verifier has in their place, in order."""
        if self.schedule.opens_parts:
            shift = self.model.logit_shift
            return self.schedule.phases(canvas, self.block_length, shift=shift)
        return self.verifier.blocks(canvas, self.block_length)

    def measured(self, canvas: Canvas) -> tuple[Int[Tensor, " B"], ...]:
        """Returns what the schedule must know of each row before a round.

        Raises:
            RuntimeError: If the schedule returns anything but integers, one of each row.
        """
        found = self.schedule.measured(canvas, self.block_length)
        require_measured(found, len(canvas), owner=self.schedule)
        return found

    def opened(
        self,
        canvas: Canvas,
        block: Block,
        measured: Sequence[Sequence[int]],
        last: list[Opening | None],
    ) -> tuple[Canvas, list[Opening | None]]:
        """Opens what the schedule opens in each row before a round.

        Args:
            canvas: The rows.
            block: The phase.
            measured: What `measured` returned, read by the host.
            last: What was open in each row before; `None` before its first round in the phase.

        Raises:
            RuntimeError: If the schedule returns no `Opening`, or one that opens nothing.
        """
        if not self.schedule.opens_parts or not last:
            return canvas, last
        length, stops = self.block_length, self.config.stop_at_eos
        phase = Phase(block, canvas.region_length, length, stops)
        openings = [
            self.schedule.opening([numbers[row] for numbers in measured], opening, phase)
            for row, opening in enumerate(last)
        ]
        for opening in openings:
            require_opening(opening, owner=self.schedule)
        return (canvas if openings == last else with_openings(canvas, openings)), [*openings]

    def blank(self, prompts: Sequence[Prompt], templates: Sequence[Sequence[int]] = ()) -> Canvas:
        """Lays out prompts and masked answers."""
        gen_length = self.config.gen_length
        canvas = Canvas.blank(
            [read_prompt(p, self.model, gen_length, row=row) for row, p in enumerate(prompts)],
            self.config.gen_length,
            mask_id=self.model.mask_id,
            eos_ids=self.verifier.eos_ids(self.model),
            templates=templates,
            align=self.model.causal_block_length or 1,
            truncates=self.config.truncate_at_eos,
            device=self.model.device,
        )
        return canvas.stop_at_eos() if self.config.stop_at_eos else canvas

    def stopped(self, canvas: Canvas, block: Block) -> Canvas:
        """Stops rows whose answer has ended, after a round."""
        canvas = canvas.stop_at_eos() if self.config.stop_at_eos else canvas
        found = self.stop.stopped(canvas, block)
        return canvas if found is None else canvas.stop_rows(found)

    def session(self, canvas: Canvas) -> Session:
        """Allocates what a canvas needs."""
        return Session(
            self.model,
            canvas,
            self.cache,
            temperature=self.config.temperature,
            seed=self.config.seed,
            num_branches=self.verifier.num_branches,
            truncation=self.config.truncation if self.config.is_tempered else None,
            cfg_scale=self.config.cfg_scale,
            banned_ids=self.config.banned_ids,
            deferred_ids=self.config.deferred_ids,
            blocks=self.schedule,
            block_length=self.block_length,
        )


def finish_block(
    decoder: Decoder,
    session: Session,
    canvas: Canvas,
    block: Block,
    *,
    observers: Sequence[Observer] = (),
) -> Canvas:
    """Decodes one block, or phase of blocks; rows that have finished are no longer computed."""
    sampler, verifier = decoder.rule, decoder.verifier
    session.open()
    # A row whose answer is full is not run for what fills up its last block.
    opened = canvas.unfinished[:, block.start : block.end].any(-1) & canvas.running
    part = canvas.take(opened.nonzero().squeeze(-1))
    # All that the sampler may commit, also behind the answer.
    num_masks = part.masked[:, block.start : block.end].sum(-1).tolist()
    limits = [verifier.max_steps(sampler, masks) for masks in num_masks]
    steps = torch.zeros_like(part.rows)
    carry: Any = None
    ids = part.rows.tolist()
    openings: list[Opening | None] = [None] * len(part)
    measured = [numbers.tolist() for numbers in decoder.measured(part)]
    part, openings = decoder.opened(part, block, measured, openings)
    _narrow(session, ids, openings)
    while len(part):
        before = part
        part, carry = verifier.advance(session, sampler, part, block, carry)
        moved = (part.tokens != before.tokens).any(-1)
        if before.goes_on is not None and part.goes_on is not None:
            # A step that finds nothing to edit ends the row's block.
            moved |= before.goes_on & ~part.goes_on
        part = decoder.stopped(part, session.reach or block)
        steps += moved
        left, taken, now, *measured = session.sync(
            part.num_open(block), steps, moved.long(), *decoder.measured(part)
        )
        _tell(observers, session, before, part, block, where=None if all(now) else moved)
        if not any(now):
            _check_open(decoder.schedule, session, before, block)
        _check_progress(sampler, left, taken, limits, moved=any(now))
        kept = [row for row, masks in enumerate(left) if masks]
        if not all(left):
            canvas = canvas.put(part)
            rows = torch.tensor(kept, dtype=torch.long, device=part.tokens.device)
            part, carry, steps = part.take(rows), take_state(carry, rows), steps[rows]
            limits, ids, openings = (_of(rows, kept) for rows in (limits, ids, openings))
            measured = [_of(numbers, kept) for numbers in measured]
        part, openings = decoder.opened(part, block, measured, openings)
        _narrow(session, ids, openings)
    return canvas


def _of(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [values[row] for row in rows]


def _narrow(session: Session, ids: Sequence[int], openings: Sequence[Opening | None]) -> None:
    """Tells the session where the open masks of each row are, if the schedule says so."""
    reaches = {
        row: opening.reach
        for row, opening in zip(ids, openings, strict=True)
        if opening is not None and opening.reach is not None
    }
    if reaches:
        session.narrow(reaches)


def _check_open(schedule: BlockSchedule, session: Session, canvas: Canvas, block: Block) -> None:
    """Blames the schedule where no row has moved because none had an open mask.

    It is asked only then, so the host may wait for the answers.
    """
    assert session.view is not None
    has_masks = canvas.masked[:, block.start : block.end].any()
    if has_masks and not session.view.eligible.any():
        raise RuntimeError(
            f"{schedule!r} must open at least one mask of every row that has masks left, but none "
            "of the masks that are left is open; its `opening` or its `chosen` is wrong."
        )


def _check_progress(
    sampler: Sampler, left: list[int], steps: list[int], limits: list[int], *, moved: bool
) -> None:
    late = any(
        masks and taken >= limit for masks, taken, limit in zip(left, steps, limits, strict=True)
    )
    if late or not moved:
        raise RuntimeError(
            f"{sampler!r} promises to finish a block within {max(limits)} steps, "
            f"but masks are left after {max(steps)}; its `max_steps` or its rule is wrong."
        )


def _tell(
    observers: Sequence[Observer],
    session: Session,
    before: Canvas,
    after: Canvas,
    block: Block,
    *,
    where: Bool[Tensor, " B"] | None,
) -> None:
    """Reports a step; `where` says which rows took it, `None`: all."""
    if not observers:
        return
    if where is not None:
        rows = where.nonzero().squeeze(-1)
        before, after = before.take(rows), after.take(rows)
    assert session.view is not None
    event = StepEvent(
        before=before,
        after=after,
        block=block,
        view=session.view,
        decode=session.number,
        requests=session.requests[before.rows],
        forwards=session.cost.forwards,
        query_positions=session.cost.query_positions[before.rows],
        drafted=session.cost.drafted[before.rows],
        accepted=session.cost.accepted[before.rows],
    )
    for observer in observers:
        observer(event)


def _check_options(
    model: MaskPredictor, cache: CachePolicy, verifier: Verifier, config: DecodeConfig
) -> None:
    """Refuses options that the plug-ins do not honour."""
    for name, ids in (("banned_ids", config.banned_ids), ("deferred_ids", config.deferred_ids)):
        if ids and max(ids) >= model.vocab_size:
            raise ValueError(
                f"{name} must be below {model.vocab_size} for {model.name}, got {max(ids)}."
            )
    reshapes = config.is_tempered or config.cfg_scale or config.deferred_ids
    if not verifier.commits_proposals and reshapes:
        raise ValueError(
            "top_p, top_k, cfg_scale, confidence_from and deferred_ids must be left out with "
            f"{verifier!r}, which lets another model decide what is written."
        )
    if config.cfg_scale and cache.needs_kv_cache:
        raise ValueError(
            f"cfg_scale must be 0 with {cache!r}, since guidance looks at two canvases and the "
            "cache holds one. Use NoCache()."
        )

"""Many prompts with a bounded number of rows: new ones take the place of finished ones."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import islice, zip_longest
from typing import NamedTuple, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.canvas import Canvas
from dllm_decode.loop import Decoder, finish_block
from dllm_decode.models.base import MaskPredictor
from dllm_decode.observers import Observer
from dllm_decode.options import DecodeConfig, DecodeOptions
from dllm_decode.output import DecodeOutput
from dllm_decode.prompts import (
    Prompt,
    Prompts,
    check_number,
    check_template,
    read_prompt,
    token_lists,
)
from dllm_decode.stopping import NeverStop, StopRule
from dllm_decode.verify import NoVerifier, Verifier
from samplers.base import Sampler


def decode_many(  # noqa: D417 - what is not listed is said once, in `decode`
    model: MaskPredictor,
    prompts: Iterable[Prompt] | Prompts,
    sampler: Sampler,
    *,
    attention_mask: Int[Tensor, "B N"] | None = None,
    num_rows: int = 8,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    config: DecodeConfig = DecodeConfig(),
    templates: Iterable[Sequence[int]] = (),
    observers: Sequence[Observer] = (),
    stop: StopRule = NeverStop(),
    **options: Unpack[DecodeOptions],
) -> Iterator[DecodeOutput]:
    """Decodes any number of prompts, at most `num_rows` of them at a time.

    At the end of every block, prompts that wait take the places of rows whose answer has ended, so
    that forwards stay full where answers are of different lengths. A row that joins has the open
    block of its own answer in the columns of the others' open block; what each row computes and
    sees is what it would alone. Its tokens are those of `decode` on all prompts at once, rounding
    aside, draws at a temperature above 0 included.

    Rows join only where the sampler sees no finished block (`Sampler.scope` is not "answer"), is
    asked at all (`Verifier.asks_sampler`), and blocks are decoded one after the other; otherwise
    one batch follows the other.

    This saves calls of the model, not columns: rows that have ended are not computed in a batch
    either. A forward over everything has as many columns as the longest of its rows. One over the
    block and what follows it, or, on a block-causal model, what comes before it, has as many as the
    row with the most of that. So it pays where a forward is bound by reading weights, and most with
    a cache whose forwards are as long as a block.

    Args:
        model: As in `decode`; so is all that is not listed here, defaults included.
        prompts: Token ids, any iterable; taken as places become free.
        sampler: As in `decode`.
        num_rows: Rows of a forward, at most.
        templates: As in `decode`; any iterable, taken in step with the prompts. An empty
            collection, as by default: everything is open.
        observers: Called after each round with a `StepEvent`, whose `requests` say which prompt
            each row has: a row of a number is one prompt's first and another's later.

    Returns:
        An iterator over one output of one row for each prompt, in the order of the prompts. Its
        `wall_s` runs from the row's first forward on, its `forwards` are those it took part in.

    Raises:
        ValueError: If sampler, cache, verifier, model and lengths do not fit together; if there
            are not as many templates as prompts, at once where both have a length; or, when its
            turn comes, if a prompt is empty or contains the mask id, or a template is too long.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows must be at least 1, got {num_rows}.")
    if attention_mask is not None or isinstance(prompts, Tensor | Mapping):
        prompts = token_lists(prompts, attention_mask)  # type: ignore[arg-type]
    if isinstance(prompts, Sized) and isinstance(templates, Sized):
        check_number(len(templates), len(prompts))
    decoder = Decoder(model, sampler, cache, verifier, config.updated(**options), stop, blocks)
    return _in_order(
        _finished(decoder, _requests(decoder, prompts, templates), num_rows, observers)
    )


class _Request(NamedTuple):
    """What is to be answered.

    Attributes:
        number: Index of the prompt.
        prompt: Token ids.
        template: Of the answer; empty if all of it is open.
    """

    number: int
    prompt: Sequence[int]
    template: Sequence[int]


def _requests(
    decoder: Decoder, prompts: Iterable[Prompt], templates: Iterable[Sequence[int]]
) -> Iterator[_Request]:
    everything_open = isinstance(templates, Sized) and not len(templates)
    pairs = zip_longest(prompts, () if everything_open else templates)
    for number, (prompt, template) in enumerate(pairs):
        if prompt is None or (template is None and not everything_open):
            fewer, more = ("prompts", "templates") if prompt is None else ("templates", "prompts")
            raise ValueError(
                f"templates must hold one answer per prompt, got {number} {fewer} and more {more}."
            )
        template = () if template is None else template
        gen_length = decoder.config.gen_length
        check_template(template, gen_length, row=number)
        read = read_prompt(prompt, decoder.model, gen_length, row=number)
        yield _Request(number, read, template)


def _in_order(finished: Iterator[tuple[int, DecodeOutput]]) -> Iterator[DecodeOutput]:
    held: dict[int, DecodeOutput] = {}
    first = 0
    for index, output in finished:
        held[index] = output
        while first in held:
            yield held.pop(first)
            first += 1


@torch.inference_mode()
def _finished(
    decoder: Decoder, waiting: Iterator[_Request], num_rows: int, observers: Sequence[Observer]
) -> Iterator[tuple[int, DecodeOutput]]:
    """Yields the index of each prompt and its output as soon as there is one."""
    first = list(islice(waiting, num_rows))
    if not first:
        return
    batch = _Batch(decoder, first)
    # A sampler that sees finished blocks, and a verifier that opens the whole answer as one block,
    # would meet rows whose answers begin elsewhere.
    joins = decoder.sampler.scope != "answer" and decoder.verifier.asks_sampler
    # Guidance has to know which tokens of a finished block were given.
    joins = joins and not decoder.config.cfg_scale
    # With several blocks open there is no point at which all rows are between two of them.
    joins = joins and not decoder.schedule.opens_parts
    while batch.num_rows:
        position = batch.finish_block(observers)
        yield from batch.leave()
        free = num_rows - batch.num_rows if joins or not batch.num_rows else 0
        batch.join(list(islice(waiting, free)), position)


class _Seat(NamedTuple):
    """Who has a row.

    Attributes:
        prompt: Its index.
        started: When its first forward began, by the clock, in seconds.
    """

    prompt: int
    started: float


class _Batch:
    """Rows that are decoded together, and come and go between blocks."""

    def __init__(self, decoder: Decoder, first: Sequence[_Request]) -> None:
        self._decoder = decoder
        self._canvas = _blank(decoder, first)
        self._session = decoder.session(self._canvas)
        self._blocks = decoder.blocks(self._canvas)
        now = time.perf_counter()
        self._seats = {row: _Seat(request.number, now) for row, request in enumerate(first)}
        self._free: list[int] = []

    @property
    def num_rows(self) -> int:
        """Rows that are not finished."""
        return len(self._seats)

    def finish_block(self, observers: Sequence[Observer]) -> int:
        """Decodes the next block and returns the position behind it."""
        block = next(self._blocks)
        self._canvas = finish_block(
            self._decoder, self._session, self._canvas, block, observers=observers
        )
        return block.end

    def leave(self) -> Iterator[tuple[int, DecodeOutput]]:
        """Gives up the rows that are finished and yields what they have become."""
        canvas = self._canvas
        unfinished = canvas.running & canvas.unfinished.any(-1)
        staying = canvas.rows[unfinished].tolist()
        for row in [row for row in self._seats if row not in staying]:
            seat = self._seats.pop(row)
            self._free.append(row)
            yield seat.prompt, self._output(row, seat)

    def join(self, newcomers: Sequence[_Request], position: int) -> None:
        """Gives free rows to prompts; the other rows are at a position of their region."""
        if not newcomers:
            return
        now, rows = time.perf_counter(), self._free[: len(newcomers)]
        self._free = self._free[len(newcomers) :]
        canvas, device = self._canvas, self._canvas.rows.device
        shifts = dict.fromkeys(self._seats, 0)
        seats = {row: _Seat(new.number, now) for row, new in zip(rows, newcomers, strict=True)}
        fresh = _blank(self._decoder, newcomers)
        parts = [replace(fresh, rows=torch.tensor(rows, device=device))]
        if shifts:
            staying = torch.isin(canvas.rows, torch.tensor(list(shifts), device=device))
            parts.append(canvas.take(staying.nonzero().squeeze(-1)).behind(position))
        joined = Canvas.joined(parts)
        shifts = dict.fromkeys(shifts, joined.start - canvas.start - position)
        self._session.rearrange(joined, shifts, {row: seat.prompt for row, seat in seats.items()})
        self._canvas, self._seats = joined, self._seats | seats
        self._blocks = self._decoder.blocks(joined)

    def _output(self, row: int, seat: _Seat) -> DecodeOutput:
        canvas, cost = self._canvas, self._session.cost
        place = torch.searchsorted(canvas.rows, row)
        nfe, target_nfe = cost.nfe[[row]].cpu(), cost.target_nfe[[row]].cpu()
        return DecodeOutput(
            tokens=canvas.take(place[None]).answers().cpu(),
            nfe=nfe,
            query_positions=cost.query_positions[[row]].cpu(),
            forwards=int(nfe),
            target_nfe=target_nfe,
            target_forwards=int(target_nfe),
            drafted=cost.drafted[[row]].cpu(),
            accepted=cost.accepted[[row]].cpu(),
            wall_s=time.perf_counter() - seat.started,
            eos_ids=canvas.eos_ids,
        )


def _blank(decoder: Decoder, requests: Sequence[_Request]) -> Canvas:
    return decoder.blank(
        [request.prompt for request in requests], [request.template for request in requests]
    )

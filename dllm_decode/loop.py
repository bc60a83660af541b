"""The one loop."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from dllm_decode import compatibility
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.observers import Observer, StepEvent
from dllm_decode.output import DecodeOutput
from dllm_decode.session import Session
from dllm_decode.verify import NoVerifier, Verifier
from samplers.base import Sampler, State, take_state


@torch.inference_mode()
def decode(
    model: MaskPredictor,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    *,
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    gen_length: int = 256,
    block_length: int = 32,
    temperature: float = 0.0,
    seed: int = 0,
    stop_at_eos: bool = True,
    truncate_at_eos: bool = False,
    templates: Sequence[Sequence[int]] = (),
    observers: Sequence[Observer] = (),
) -> DecodeOutput:
    """Fills the answers to a batch of prompts by iterative unmasking.

    The answer is decoded block by block, left to right. In each round the model is run once,
    `sampler` proposes which positions to commit, and `verifier` decides what is kept.

    Args:
        model: The mask predictor, see `MaskPredictor`.
        prompts: Token ids, one sequence per row; lengths may differ.
        sampler: Which positions to commit, and with which token.
        cache: Which columns to recompute at each forward. Every choice but `NoCache` approximates.
        verifier: How proposals are checked. `NoVerifier` takes the sampler's word.
        gen_length: Answer length in tokens, including padding after EOS.
        block_length: Tokens per block. Equal to `gen_length`: no block order at all. A block-causal
            model wants its own block length or a multiple.
        temperature: Gumbel-max temperature of the proposals; 0 is greedy.
        seed: Seed of the noise; a row's noise depends on nothing else of the batch but its place.
        stop_at_eos: Stop a row once EOS is committed with no mask before it.
        truncate_at_eos: Fill what lies behind an EOS as soon as it is committed, also while masks
            before it are left. Saves the forwards of all that, and stakes the answer's length on
            the first EOS that the sampler commits (Learn2PD's end-of-text prediction).
        templates: Answers with some tokens given: per row, token ids with the model's `mask_id` at
            the open positions. Given tokens are never changed.
        observers: Called after each round with a `StepEvent`; for traces, streaming, progress bars.

    Raises:
        ValueError: If sampler, cache, verifier, model and lengths do not fit together.
        RuntimeError: If the sampler leaves a running row with as many masks as before, beyond its
            stated bound.
    """
    setting = Setting(
        model=model,
        sampler=sampler,
        cache=cache,
        verifier=verifier,
        gen_length=gen_length,
        block_length=block_length,
        temperature=temperature,
        seed=seed,
        stop_at_eos=stop_at_eos,
        truncate_at_eos=truncate_at_eos,
    )
    started = time.perf_counter()
    canvas = setting.blank(prompts, templates)
    session = setting.session(canvas)
    for block in verifier.blocks(canvas, block_length):
        canvas = finish_block(setting, session, canvas, block, observers=observers)
    bill = session.cost
    return DecodeOutput(
        tokens=canvas.answers().cpu(),
        nfe=bill.nfe.cpu(),
        query_positions=bill.query_positions.cpu(),
        forwards=bill.forwards,
        target_nfe=bill.target_nfe.cpu(),
        target_forwards=bill.target_forwards,
        drafted=bill.drafted.cpu(),
        accepted=bill.accepted.cpu(),
        wall_s=time.perf_counter() - started,
        eos_ids=canvas.eos_ids,
    )


@dataclass(frozen=True)
class Setting:
    """How answers are decoded; the attributes are those of `decode`.

    Raises:
        ValueError: If sampler, cache, verifier, model and lengths do not fit together.
    """

    model: MaskPredictor
    sampler: Sampler
    cache: CachePolicy
    verifier: Verifier
    gen_length: int
    block_length: int
    temperature: float
    seed: int
    stop_at_eos: bool
    truncate_at_eos: bool

    def __post_init__(self) -> None:
        _check(self.model, self.block_length, self.gen_length, self.temperature)
        self.sampler.check(
            model=self.model.name, gen_length=self.gen_length, block_length=self.block_length
        )
        compatibility.check(self.model, self.sampler, self.cache, verifier=self.verifier)
        self.verifier.check(self.model)

    def blank(
        self, prompts: Sequence[Sequence[int]], templates: Sequence[Sequence[int]] = ()
    ) -> Canvas:
        """Lays out prompts and masked answers."""
        canvas = Canvas.blank(
            prompts,
            self.gen_length,
            mask_id=self.model.mask_id,
            eos_ids=self.verifier.eos_ids(self.model),
            templates=templates,
            align=self.model.causal_block_length or 1,
            truncates=self.truncate_at_eos,
            device=self.model.device,
        )
        return canvas.stop_at_eos() if self.stop_at_eos else canvas

    def session(self, canvas: Canvas) -> Session:
        """Allocates what a canvas needs."""
        return Session(
            self.model,
            canvas,
            self.cache,
            temperature=self.temperature,
            seed=self.seed,
            num_branches=self.verifier.num_branches,
        )


def finish_block(
    setting: Setting,
    session: Session,
    canvas: Canvas,
    block: Block,
    *,
    observers: Sequence[Observer] = (),
) -> Canvas:
    """Decodes one block; rows that have finished it are no longer computed."""
    sampler, verifier = setting.sampler, setting.verifier
    session.open()
    part = canvas.take(canvas.num_open(block).nonzero().squeeze(-1))
    limits = [verifier.max_steps(sampler, masks) for masks in part.num_open(block).tolist()]
    steps = torch.zeros_like(part.rows)
    carry: State = None
    while len(part):
        before = part
        part, carry = verifier.advance(session, sampler, part, block, carry)
        moved = (part.tokens != before.tokens).any(-1)
        part = part.stop_at_eos() if setting.stop_at_eos else part
        steps += moved
        left, taken, now = session.sync(part, part.num_open(block), steps, moved)
        _tell(observers, session, before, part, block, where=None if all(now) else moved)
        _check_progress(sampler, left, taken, limits, moved=any(now))
        if not all(left):
            canvas = canvas.put(part)
            kept = [row for row, masks in enumerate(left) if masks]
            rows = torch.tensor(kept, dtype=torch.long, device=part.tokens.device)
            part, carry, steps = part.take(rows), take_state(carry, rows), steps[rows]
            limits = [limits[row] for row in kept]
    return canvas


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
        requests=session.requests[before.rows],
        forwards=session.cost.forwards,
        query_positions=session.cost.query_positions[before.rows],
        drafted=session.cost.drafted[before.rows],
        accepted=session.cost.accepted[before.rows],
    )
    for observer in observers:
        observer(event)


def _check(model: MaskPredictor, block_length: int, gen_length: int, temperature: float) -> None:
    if gen_length < 1:
        raise ValueError(f"gen_length is at least 1 token, got {gen_length}.")
    inner = model.causal_block_length
    if not 1 <= block_length <= max(gen_length, inner):
        raise ValueError(
            f"block_length is between 1 and gen_length={gen_length} tokens, got {block_length}."
        )
    if inner and block_length % inner:
        raise ValueError(
            f"{model.name} attends in blocks of {inner} tokens, so block_length is a multiple "
            f"of {inner}, got {block_length}."
        )
    if not temperature >= 0.0:
        raise ValueError(f"temperature is at least 0, got {temperature}.")

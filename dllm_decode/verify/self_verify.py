"""Self-verification (FreeDave): the model checks drafts that its own logits made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.passes import Branches, Pass
from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.look import look, with_window
from dllm_decode.engine.settle import end_at_eos, with_decision
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from dllm_decode.engine.views import view_of
from dllm_decode.verify.evaluated_canvases import (
    DraftStep,
    EvaluatedCanvases,
    RowProgress,
    by_row_and_branch,
    count_unsettled,
)
from samplers.calls import next_step
from samplers.checks import count_from
from samplers.facts import Fact

Evaluate = Literal["batch", "tree"]
Reach = Literal["block", "next"]


@dataclass(frozen=True)
class SelfVerify(Verifier):
    """Takes several of the sampler's steps on one forward, with the tokens of plain decoding.

    The sampler drafts: it takes further steps on the logits of its last step, each time for the
    masks that are left. One forward then looks at the row's present canvas and at all drafts, which
    are canvases too. From then on the sampler takes steps that count, each on the logits of the
    canvas that the row has reached. While the forward has looked at that canvas, no further forward
    is needed. Tokens and their order are therefore those of plain decoding with the same cache, for
    every sampler and however good the drafts are. Only rounding may differ, because a wider forward
    may round differently. Noise is keyed by the position and the number of committed tokens, so
    that this holds at any temperature, seed by seed.

    No row takes part in more forwards than in plain decoding, but each forward computes up to
    `draft_steps` times as many columns, which count as query positions. This pays if the time of a
    forward hardly depends on its columns: on a GPU, with a cache that leaves few columns, for few
    rows.

    With a cache, drafts need keys and values of their own. As rows of a batch, each draft has a
    copy of the whole row, so that the KV cache is `draft_steps` times as large. As branches of a
    tree, drafts share the columns that are not computed: the cache grows by the columns of a
    forward for each further draft. Rows that are ahead wait, so that the next forward is for all.

    Source: Wu and Zhang 2025, "Free Draft-and-Verification: Toward Lossless Parallel Decoding for
    Diffusion Large Language Models", https://arxiv.org/abs/2510.00294.
    Differs: Any sampler, not only one token a step; batches; rows at their own pace. A draft is
    accepted if it is the canvas that the sampler reaches; the authors' threshold mode also accepts
    subsets of a draft, which changes the text. Their eager acceptance drafts any number of steps
    into the following blocks, on any model; here ("next") drafts end with the finished block, so
    that the next block needs no first forward, and only if that changes no token.

    Attributes:
        draft_steps: Canvases of a row that a forward looks at, the present one and drafts, at least
            1; 1 is plain decoding.
        evaluate: "batch": these canvases are rows of one forward. "tree": they are further columns
            of their row in one forward; without a cache "batch" is faster.
        reach: "block": drafts end before the block is finished. "next": the finished block is a
            draft too, looked at together with the next block. This happens only without a cache or
            on a block-causal model, because otherwise the logits of a block depend on when it was
            opened; and only for samplers that see the open block alone.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    draft_steps: Annotated[int, count_from(1)] = 4
    evaluate: Evaluate = "batch"
    reach: Reach = "next"

    @property
    def needs(self) -> frozenset[Fact]:
        if self.draft_steps == 1:
            return frozenset()
        return frozenset({Fact.EXACT_REPLAY})

    @property
    def gives(self) -> frozenset[Fact]:
        facts = {Fact.SAMPLER_DECIDES}
        return frozenset(facts if self.draft_steps > 1 else facts | {Fact.ONE_STEP_A_FORWARD})

    @property
    def num_branches(self) -> int:
        return self.draft_steps if self.evaluate == "batch" else 1

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        if self.draft_steps == 1:
            return look(decoder, state)
        state, _ = with_window(decoder, state)
        progress = [RowProgress(*(row.numbers.verifier or ())) for row in state.rows]
        ready = self._ready(decoder, state, progress)
        if not ready:
            steps = self._draft(decoder, state, progress)
            state = self._evaluate(decoder, state, steps)
            progress = [RowProgress(0, start) for start in _starts(state)]
            ready = list(range(len(progress)))
        evaluated: EvaluatedCanvases = state.verifier_state
        state = state.with_drafts(accepted=evaluated.num_accepted())
        evaluated = evaluated._replace(
            latest=evaluated.current_branches(), num_unsettled=_num_unsettled(state)
        )
        state = state._replace(verifier_state=evaluated)
        return state, _look_of(decoder, state, ready, progress)

    def after(self, decoder: Decoder, state: State) -> tuple[State, Int[Tensor, "B N"] | None]:
        if self.draft_steps == 1:
            return state, None
        evaluated: EvaluatedCanvases = state.verifier_state.with_present(state.canvas)
        num_unsettled = _num_unsettled(state)
        num_settled = evaluated.num_unsettled - num_unsettled
        # In the order of the fields of `RowProgress`.
        numbers = [evaluated.reached, evaluated.logits_starts, num_unsettled, num_settled]
        return state._replace(verifier_state=evaluated), torch.stack(numbers, -1)

    def _ready(self, decoder: Decoder, state: State, progress: Sequence[RowProgress]) -> list[int]:
        """Returns the rows whose present canvas was evaluated in all columns of the window."""
        max_offset = self._width(decoder) - decoder.window_length
        return [
            number
            for number, (row, start) in enumerate(zip(progress, _starts(state), strict=True))
            if row.reached >= 0 and 0 <= start - row.logits_start <= max_offset
        ]

    def _width(self, decoder: Decoder) -> int:
        """Returns how many columns are predicted: one block, or two with the next block."""
        is_exact = decoder.model.causal_block_length or not decoder.cache.needs_kv_cache
        sees_next = (
            self.reach == "next"
            and self.draft_steps > 1
            and decoder.sampler_sees_block_only
            and is_exact
        )
        return decoder.window_length * (2 if sees_next else 1)

    def _draft(
        self, decoder: Decoder, state: State, progress: Sequence[RowProgress]
    ) -> list[DraftStep]:
        """Lets the sampler continue from the present canvases, on the logits of their last step.

        Returns:
            The present canvases of all rows, then drafts of ever fewer rows. A row in its first
            forward of a block has no logits to draft with.
        """
        steps = [DraftStep(list(range(len(state.rows))), state.canvas.tokens)]
        rows = [n for n, row in enumerate(state.rows) if not row.is_fresh]
        if not rows:
            return steps
        seen = _look_of(decoder, state, rows, progress)
        part, alive = state.take(rows), rows
        bounds = [row.opening.bounds for row in part.rows]
        finishing = self._finishing(decoder, state)
        num_steps = max(progress[row].expected_steps for row in rows)
        while alive and len(steps) < self.draft_steps:
            num_drafts = max(1, min(num_steps, self.draft_steps - len(steps)))
            drafts = []
            for _ in range(num_drafts):
                part = _next_drafts(decoder, part, seen)
                drafts.append(part.canvas)
            # The host waits to learn which rows have finished; their later drafts are dropped.
            num_steps = 1
            counts = torch.stack([count_unsettled(draft, bounds) for draft in drafts]).tolist()
            for draft, row_counts in zip(drafts, counts, strict=True):
                # A finished block is drafted no further; it is a draft if a next block exists.
                unfinished = {row for row, count in zip(rows, row_counts, strict=True) if count}
                drafted = [row for row in alive if row in unfinished or row in finishing]
                alive = [row for row in alive if row in unfinished]
                if drafted:
                    indices = send([rows.index(row) for row in drafted], state.device)
                    steps.append(DraftStep(drafted, draft.tokens[indices]))
        return steps

    def _finishing(self, decoder: Decoder, state: State) -> set[int]:
        """Returns the rows whose finished block is a draft too, because a next block exists."""
        if self._width(decoder) == decoder.window_length:
            return set()
        return {n for n, row in enumerate(state.rows) if row.opening.stop < row.end}

    def _evaluate(self, decoder: Decoder, state: State, steps: Sequence[DraftStep]) -> State:
        """Runs one forward on all canvases and keeps the logits of each canvas."""
        starts = _starts(state)
        width = self._width(decoder)
        rows = tuple(row for step in steps for row in step.rows)
        branch_numbers = tuple(branch for branch, step in enumerate(steps) for _ in step.rows)
        tokens = torch.cat([step.tokens for step in steps])
        assert state.window is not None
        pass_ = Pass(state.window)
        if width > decoder.window_length:
            pass_ = pass_._replace(
                window=Window.of(starts, width, state.canvas),
                policy_rows=_two_blocks(state, starts, width),
            )
        if len(steps) == 1:
            state, logits = forward(decoder, state, pass_)
        else:
            branches = Branches(tokens, rows, branch_numbers, in_columns=self.evaluate == "tree")
            state, logits = forward(decoder, state, pass_._replace(branches=branches))
        size = (len(state.rows), len(steps))
        zeros = torch.zeros_like(state.noise_keys)
        evaluated = EvaluatedCanvases(
            tokens=by_row_and_branch(tokens, rows, branch_numbers, size, fill=-1),
            logits=by_row_and_branch(logits, rows, branch_numbers, size),
            logits_starts=send(starts, tokens.device),
            latest=zeros,
            reached=zeros,
            num_unsettled=zeros,
        )
        return state._replace(verifier_state=evaluated).with_drafts(drafted=evaluated.num_drafted())


def _num_unsettled(state: State) -> Int[Tensor, " B"]:
    """Counts the unsettled positions of each row's opening."""
    return count_unsettled(state.canvas, [row.opening.bounds for row in state.rows])


def _starts(state: State) -> tuple[int, ...]:
    """Returns the first column of each row's window."""
    assert state.window is not None
    return state.window.starts


def _two_blocks(state: State, starts: Sequence[int], width: int) -> list[Row]:
    """Returns the rows for the cache policy, with open blocks that cover the next block too."""
    return [
        row.with_block(row.opening.block[0], max(row.opening.block[1], min(start + width, row.end)))
        for row, start in zip(state.rows, starts, strict=True)
    ]


def _look_of(
    decoder: Decoder, state: State, rows: Sequence[int], progress: Sequence[RowProgress]
) -> Look:
    """Returns the sampler's look at some rows, on the logits of their `latest` branches."""
    evaluated: EvaluatedCanvases = state.verifier_state
    part, window = with_window(decoder, state.take(rows))
    logits_starts = [progress[row].logits_start for row in rows]
    index = send(rows, state.device)
    logits = evaluated.latest_logits(index, window.starts, logits_starts, decoder.window_length)
    waiting = sorted(set(range(len(state.rows))) - set(rows))
    return Look(view_of(decoder, part, window, logits), window, waiting)


def _next_drafts(decoder: Decoder, state: State, seen: Look) -> State:
    """Returns drafts after one more step of the sampler, on logits of an earlier canvas."""
    summary = seen.view.summary
    view = view_of(decoder, state, seen.window, summary.model_logits)
    # All drafts share the statistics of the logits.
    view = replace(view, summary=summary)
    decision, sampler_state = next_step(decoder.sampler, view, state.sampler_state)
    after = with_decision(decoder, state, seen.window, view, decision)
    return end_at_eos(decoder, after._replace(sampler_state=sampler_state))

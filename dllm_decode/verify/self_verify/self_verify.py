"""Self-verification (FreeDave): the model checks drafts that its own logits made."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch

from dllm_decode.canvas import Block, Canvas
from dllm_decode.packing import Arrangement, Branches
from dllm_decode.session import Session
from dllm_decode.verify.base import Verifier, check_decision, settle
from dllm_decode.verify.self_verify.evaluated_states import (
    DraftLevel,
    EvaluatedStates,
    Standing,
    arrange,
    everything,
    imagined,
    joined,
    keep_lookahead,
    look_ahead,
    placed,
    recalled,
    shown,
    taken,
    view_of,
)
from samplers.base import Sampler, first_state, next_step
from samplers.checks import require_choice, require_count
from samplers.state import put_state, take_state
from samplers.view import View

Evaluate = Literal["batch", "tree", "sequential"]
Reach = Literal["block", "next"]


class Verified(NamedTuple):
    """The sampler's state, and what the last forward found out.

    Attributes:
        state: The state of the sampler.
        known: The states of the canvas that the forward looked at.
    """

    state: Any
    known: EvaluatedStates


@dataclass(frozen=True)
class SelfVerify(Verifier[Verified]):
    """Takes several of the sampler's steps on one forward, the very steps it would take without.

    The logits at hand do not only decide the next state of the canvas: asked again and again, each
    time about the masks that are left, the sampler drafts the states after it. One forward looks
    at the next state and its drafts together. From then on the sampler steps as ever, on the
    logits of the state that it is really in; as long as that state is among those looked at, no
    forward is needed. So tokens and their order are those of plain decoding with the same cache,
    for every sampler, whatever the drafts are worth; rounding aside, since a wider forward may
    round differently (`evaluate="sequential"` does not). Noise is keyed by the state, so the same
    holds at any temperature, seed by seed.

    Never more forwards than plain decoding; a forward computes up to `draft_steps` times as many
    columns, all of which count as query positions. It pays where a forward's time hardly depends
    on its columns: on an accelerator, with a cache that leaves few, for few rows.

    With a cache, each draft needs keys and values of its own. As rows of a batch, drafts have a
    copy of all that their row has: the KV cache grows to `draft_steps` times that of plain
    decoding. As branches of a tree they share what is not computed: for each further draft the
    cache grows by the columns of a forward, a block with `DualCache`. Rows advance by different
    numbers of steps; those that are ahead wait for the others, so that the next forward is for all.

    Source: Wu and Zhang 2025, "Free Draft-and-Verification: Toward Lossless Parallel Decoding for
    Diffusion Large Language Models", https://arxiv.org/abs/2510.00294.
    Differs: Any sampler, not only one token a step; batches; rows at their own pace. The
    authors' first forward of a block looks at one state, as here, and each later one at up to
    `draft_steps`, of which here the first is the row's present state. A draft is accepted if it is
    the state that the sampler reaches; the authors' threshold mode accepts subsets of it, which
    changes the text. Their eager acceptance drafts any number of steps into the blocks that follow,
    on any model; here ("next") drafts go up to the finished block, so that the next one needs no
    first forward, and only where that changes nothing.

    Attributes:
        draft_steps: States that a forward looks at, at least 1; 1 is plain decoding.
        evaluate: Whether these states are rows of one forward ("batch"), further columns of their
            row in one forward ("tree"), or have one forward each ("sequential"): slower than plain
            decoding, with exactly its shapes at one prompt; a yardstick for rounding. A tree
            without a cache attends to all columns of all states and hides most: use "batch" there.
        reach: Whether drafts end before the block is finished ("block"), or the finished block is a
            draft too ("next"), looked at together with the block behind it. The latter only without
            a cache or on a block-causal model, for samplers that see the open block alone, and not
            under "sequential": elsewhere the logits of a block depend on when it was opened.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    draft_steps: int = 4
    evaluate: Evaluate = "batch"
    reach: Reach = "next"

    def __post_init__(self) -> None:
        require_count("draft_steps", self.draft_steps, 1)
        require_choice("evaluate", self.evaluate, get_args(Evaluate))
        require_choice("reach", self.reach, get_args(Reach))

    @property
    def looks_ahead(self) -> bool:
        return self.draft_steps > 1

    @property
    def commits_proposals(self) -> bool:
        return True

    @property
    def num_branches(self) -> int:
        return self.draft_steps if self.evaluate == "batch" else 1

    def advance(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        carry: Verified | None,
    ) -> tuple[Canvas, Verified]:
        ahead = self._ahead(session, sampler, canvas, block)
        keep_lookahead(session)
        ready = list(range(len(canvas)))
        if carry is None:
            known = self._enter(session, sampler, canvas, block, ahead)
            state = first_state(sampler, view_of(session, sampler, canvas, block, known))
        else:
            state, known = carry
            standings = [Standing(*row) for row in session.answers(session.row_ids(canvas))]
            found_again = [index for index in ready if standings[index].place >= 0]
            if found_again:
                ready = found_again
            else:
                num_steps = max(row.expected_steps for row in standings)
                drafts = self._draft(
                    session, sampler, canvas, block, known, state, num_steps, ahead
                )
                known = self._look(session, sampler, ahead, drafts)
                session.count_drafts(canvas, drafted=known.num_drafted())
        reached = known.current()
        session.count_drafts(canvas, accepted=known.num_accepted(reached))
        known = known._replace(latest=reached)
        after, state = self._step(session, sampler, canvas, block, known, state, ready)
        known = known.moved(after)
        masks = after.num_open(block)
        session.ask(after, known.reached, masks, canvas.num_open(block) - masks)
        if ahead != block:
            look_ahead(session, after, block, known)
        return after, Verified(state, known)

    def _step(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        known: EvaluatedStates,
        state: Any,
        ready: list[int],
    ) -> tuple[Canvas, Any]:
        """Lets the sampler take a step in the rows whose present state is known."""
        if len(ready) == len(canvas):
            view = view_of(session, sampler, canvas, block, known)
            decision, state = next_step(sampler, view, state)
            session.view = view
            check_decision(session, canvas, view, decision, sampler)
            settled = settle(canvas, view, decision, sampler)
            if decision.goes_on is not None:
                settled = replace(canvas, tokens=settled.tokens)
            return settled, state
        rows = torch.tensor(ready, device=canvas.rows.device)
        here = canvas.take(rows)
        view = view_of(session, sampler, here, block, known, rows)
        decision, after = next_step(sampler, view, take_state(state, rows))
        session.view = view
        check_decision(session, here, view, decision, sampler)
        written = settle(here, view, decision, sampler).tokens
        tokens = canvas.tokens.index_copy(0, rows, written)
        return replace(canvas, tokens=tokens), put_state(state, rows, after)

    def _ahead(self, session: Session, sampler: Sampler, canvas: Canvas, block: Block) -> Block:
        """Returns the block, or, if drafts reach as far, both the block and the next."""
        if (
            self.reach == "block"
            or self.draft_steps == 1
            or self.evaluate == "sequential"
            or sampler.scope != "block"
            or sampler.leave_one_out
            or not session.forgets_blocks
        ):
            return block
        return Block(block.start, min(2 * block.end - block.start, canvas.region_length))

    def _enter(
        self, session: Session, sampler: Sampler, canvas: Canvas, block: Block, ahead: Block
    ) -> EvaluatedStates:
        """Returns what is known of the first states of a block; runs a forward for the others."""
        lookahead = recalled(session, canvas, block)
        if not lookahead:
            return self._look(session, sampler, ahead, [everything(canvas)])
        there = list(lookahead)
        missing = [index for index in range(len(canvas)) if index not in lookahead]
        logits = [part[None] for part in lookahead.values()]
        if missing:
            part = taken(canvas, missing)
            looked = self._look(session, sampler, block, [everything(part)])
            # The other rows' first forward, which may have to refresh what they cache, is to come.
            session.open()
            logits += looked.logits[:, 0].split(1)
        known = torch.cat(logits)[:, None]
        if missing:
            known = known[torch.tensor([*there, *missing], device=canvas.rows.device).argsort()]
        return EvaluatedStates.of(
            tokens=canvas.tokens[:, None],
            logits=known,
            leave_one_out=known[..., :0, 0],
        )

    def _draft(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        known: EvaluatedStates,
        state: Any,
        num_steps: int,
        ahead: Block,
    ) -> list[DraftLevel]:
        """Lets the sampler go on from the present state on the logits of its last step.

        Args:
            session: Makes the views.
            sampler: Drafts.
            canvas: The present states.
            block: The open block.
            known: What the last forward looked at.
            state: Of the sampler.
            num_steps: Steps that the block is expected to take. So many are made before the host
                waits to learn which rows have finished; a draft behind that is made for nothing.
            ahead: The block, or with it the next, if the finished block is a draft too.
        """
        levels = [everything(canvas)]
        alive = levels[0].rows
        seen = view_of(session, sampler, canvas, block, known)
        while alive and len(levels) < self.draft_steps:
            drafts = []
            for _ in range(max(1, min(num_steps, self.draft_steps - len(levels)))):
                view = imagined(shown(session, sampler, canvas, block, seen))
                decision, state = next_step(sampler, view, state)
                canvas = settle(canvas, view, decision, sampler)
                drafts.append(canvas)
            num_steps = 1
            masks = torch.stack([draft.num_open(block) for draft in drafts]).tolist()
            for draft, left in zip(drafts, masks, strict=True):
                before, alive = alive, [row for row in alive if left[row]]
                rows = alive if ahead == block else before
                if rows:
                    levels.append(DraftLevel(rows, draft))
        return levels

    def _look(
        self, session: Session, sampler: Sampler, block: Block, levels: list[DraftLevel]
    ) -> EvaluatedStates:
        """Runs the forwards; `levels[0]` holds the present states."""
        canvas, num_levels = levels[0].canvas, len(levels)
        if num_levels == 1:
            return _looked(session.forward(canvas, block, sampler), canvas)
        arrangement = arrange(session, levels)
        rows, places = arrangement.index
        if self.evaluate != "sequential":
            branches = self._branches(session, canvas, arrangement)
            tokens = torch.stack([level.canvas.tokens for level in levels])[places, rows]
            states = replace(canvas.take(rows), tokens=tokens, layout=arrangement.layout)
            views = [session.forward(states, block, sampler, branches=branches)]
        else:
            # The present state last: then the KV cache is what plain decoding would leave.
            parts = [level.taken() for level in levels]
            tokens = torch.cat([part.tokens for part in parts])
            views = [session.forward(part, block, sampler) for part in reversed(parts)]
            views.reverse()
        logits = [view.computed.logits for view in views]
        leave_one_out = [
            view.computed.logits[:, :0, 0] if view.leave_one_out is None else view.leave_one_out
            for view in views
        ]
        size = (len(canvas), num_levels)
        return EvaluatedStates.of(
            tokens=placed(tokens, rows, places, size, fill=-1),
            logits=placed(joined(logits), rows, places, size),
            leave_one_out=placed(joined(leave_one_out), rows, places, size),
        )

    def _branches(self, session: Session, canvas: Canvas, arrangement: Arrangement) -> Branches:
        """Says which states are whose, as the host knows it."""
        ids = session.row_ids(canvas)
        return Branches(
            arrangement.index[1],
            "rows" if self.evaluate == "batch" else "columns",
            ids=[ids[row] for row in arrangement.rows],
            num_rows=len(canvas),
            depth=arrangement.places[-1] + 1,
        )


def _looked(view: View, canvas: Canvas) -> EvaluatedStates:
    """Returns what a forward said about the present states alone."""
    logits = view.computed.logits[:, None]
    leave_one_out = (
        logits[..., :0, 0] if view.leave_one_out is None else view.leave_one_out[:, None]
    )
    return EvaluatedStates.of(
        tokens=canvas.tokens[:, None],
        logits=logits,
        leave_one_out=leave_one_out,
    )

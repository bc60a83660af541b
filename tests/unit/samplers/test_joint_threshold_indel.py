"""JointThresholdInDel against a plain statement of its rule, and its moves in the engine."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from tiny_models import tiny

from dllm_decode import S2D2, DualCache, FreeCache, PrefixCache, StepEvent, decode
from samplers import JointThresholdInDel
from samplers.testing import PlayedStep, Style, play, settled_by

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
RULES = (
    JointThresholdInDel(0.3, 0.1, 4, 2, 5),
    JointThresholdInDel(0.2, 0.0, 9, 7, 3),
    JointThresholdInDel(0.9, 0.0, 0, 1, 10),
    JointThresholdInDel(0.9, 0.0, 1, 1, 10),
)


@dataclass
class Plain:
    """The rule for the open positions of one block, one position at a time; `None` is [MASK]."""

    rule: JointThresholdInDel
    block: list[int | None]
    events: Counter[str]
    original: list[bool] = field(default_factory=list)
    num_steps: int = 0
    post_steps: int = 0
    seen: set[tuple[int | None, ...]] = field(default_factory=set)
    tried: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original = [True] * len(self.block)

    def likeliest(self, logits: Sequence[float], but: set[int]) -> int | None:
        allowed = [t for t, logit in enumerate(logits) if t not in but and logit > -math.inf]
        return max(allowed, key=lambda token: (logits[token], -token), default=None)

    def step(self, logits: list[list[float]], confidence: list[float]) -> bool:
        """Changes the block; returns whether it has ended."""
        rule, size, moves = self.rule, len(self.block), {self.rule.delete_id, self.rule.split_id}
        budget = rule.max_edit_steps
        proposals = [self.likeliest(row, set()) for row in logits]
        masks = [n for n in range(size) if self.block[n] is None]
        originals = [n for n in masks if self.original[n]]
        self.num_steps += 1
        self.post_steps += not originals
        ends = self.num_steps > size + budget
        self.events["last step with original masks"] += ends and bool(originals)
        ends |= not originals and self.post_steps >= budget
        fill = masks
        if originals and not ends:
            least = 1 + len(masks) - len(originals)
            fill = [n for n in masks if confidence[n] > rule.threshold]
            if len(fill) < least:
                fill = sorted(masks, key=lambda n: -confidence[n])[:least]
            if not budget and set(originals) <= set(fill):
                ends, fill = True, masks
        edits = [
            n
            for n in range(size)
            if n not in masks
            and confidence[n] > rule.edit_threshold
            and proposals[n] != self.block[n]
        ]
        chosen = sorted([*fill, *edits])
        if not chosen:
            self.events["nothing to change"] += 1
            return True
        is_blank = len(masks) == size
        if ends or is_blank:
            for n in chosen:
                self.events["no move in an empty block"] += not ends and proposals[n] in moves
                proposals[n] = self.likeliest(logits[n], moves)
        if not ends and tuple(self.block) in self.seen:
            self.events["seen before"] += 1
            at = min(chosen, key=lambda n: confidence[n])
            excluded = self.tried.get(at, set()) | (moves if is_blank else set())
            untried = self.likeliest(logits[at], excluded)
            proposals[at] = proposals[at] if untried is None else untried
        self.seen.add(tuple(self.block))
        self.move(chosen, proposals)
        self.events["ended by the budget"] += ends
        return ends

    def move(self, chosen: list[int], proposals: list[int | None]) -> None:
        block: list[tuple[int | None, bool]] = []
        for n, (was, original) in enumerate(zip(self.block, self.original, strict=True)):
            token = proposals[n] if n in chosen else was
            if n in chosen:
                self.tried.setdefault(n, set()).add(token)
            if n in chosen and token == self.rule.delete_id:
                self.events["deleted"] += 1
            elif n in chosen and token == self.rule.split_id:
                self.events["inserted"] += 1
                block += [(None, False), (was, original)]
            else:
                block.append((token, original))
        self.events["dropped"] += any(token is not None for token, _ in block[len(self.block) :])
        block += [(None, False)] * len(self.block)
        self.block, self.original = map(list, zip(*block[: len(self.block)], strict=True))


def block_after(played: PlayedStep[Any], row: int) -> list[int | None]:
    decision, view = played.decision, played.view
    columns = view.eligible[row].nonzero().flatten().tolist()
    empty = view.masked[row] & ~decision.commit[row] | decision.remask[row]
    tokens = torch.where(decision.commit[row], decision.tokens[row], view.tokens[row])
    return [None if empty[column] else int(tokens[column]) for column in columns]


def compare(rule: JointThresholdInDel, styles: Sequence[Style], num_seeds: int) -> set[str]:
    """Compares every step with the plain rule; returns the events that were met."""
    events: Counter[str] = Counter()
    for style, seed in product(styles, range(num_seeds)):
        plain_rules: dict[int, Plain] = {}
        for played in play(rule, seed, style=style, dtype=torch.float64):
            view = played.view
            for row in view.eligible.any(-1).nonzero().flatten().tolist():
                open_ = view.eligible[row]
                size = int(open_.sum())
                plain = plain_rules.setdefault(row, Plain(rule, [None] * size, events))
                logits = view.logits[row, open_].tolist()
                ended = plain.step(logits, view.confidence[row, open_].tolist())
                assert block_after(played, row) == plain.block
                assert settled_by(played.decision)[row, open_].all() == ended
    return {name for name, number in events.items() if number}


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_step_is_that_of_the_plain_rule(rule: JointThresholdInDel) -> None:
    events = compare(rule, ["drifting", "excluded"], 12)
    assert {"deleted", "inserted", "dropped", "ended by the budget"} <= events
    if rule.threshold > 0.5:
        assert "last step with original masks" in events
    if rule.max_edit_steps > 5:
        assert {"seen before", "no move in an empty block", "nothing to change"} <= events


class Moves:
    """Counts re-masked positions and steps of each block; checks that given tokens stay."""

    def __init__(self) -> None:
        self.num_remasked = 0
        self.steps: dict[tuple[int, int], int] = {}

    def __call__(self, event: StepEvent) -> None:
        changed = event.before.tokens != event.after.tokens
        assert not (changed & event.before.given).any()
        self.num_remasked += int((event.after.masked & ~event.before.masked).sum())
        for number, row in enumerate(event.rows):
            assert not changed[number, : row.opening.start].any()
            block = row.request.index, row.opening.start
            self.steps[block] = self.steps.get(block, 0) + 1


@pytest.mark.parametrize("family", ["llada2_moe", "llada"])
def test_answers_hold_neither_masks_nor_moves_in_any_batch_and_with_any_exact_cache(
    family: str,
) -> None:
    model = tiny(family)
    template = [model.mask_id, model.mask_id, 33, model.mask_id, 34]
    options: Any = {
        "gen_length": 14, "block_length": 8, "stop_at_eos": False,
        "templates": [[], template, template],
    }  # fmt: skip
    token_counts = Counter(decode(model, PROMPTS, RULES[0], **options).tokens.flatten().tolist())
    (delete, _), (split, _) = token_counts.most_common(2)
    sampler = JointThresholdInDel(0.3, 0.0, 5, delete, split)
    moves = Moves()
    out = decode(model, PROMPTS, sampler, observers=[moves], **options)
    assert moves.num_remasked
    assert not torch.isin(out.tokens, torch.tensor([model.mask_id, delete, split])).any()
    assert max(moves.steps.values()) <= sampler.max_steps(8)
    assert out.tokens[1:, [2, 4]].tolist() == [[33, 34]] * 2
    for row, prompt in enumerate(PROMPTS):
        alone = options | {"templates": options["templates"][row : row + 1]}
        assert torch.equal(decode(model, [prompt], sampler, **alone).tokens[0], out.tokens[row])
    for cache in (PrefixCache(), DualCache(), FreeCache()) if family == "llada2_moe" else ():
        cached = decode(model, PROMPTS, sampler, cache=cache, **options)
        assert torch.equal(cached.tokens, out.tokens)


def test_wrong_use_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"must be tokens of the model.*Use JointThreshold"):
        decode(tiny("llada2_moe"), [[5]], JointThresholdInDel(), gen_length=8)
    with pytest.raises(ValueError, match="lets the sampler decide every step"):
        decode(
            tiny("llada2_moe"), [[5]], JointThresholdInDel(delete_id=2, split_id=5),
            verifier=S2D2(), gen_length=8,
        )  # fmt: skip

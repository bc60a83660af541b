"""Every legal pair decodes; every illegal one is refused before any forward, by name."""

from dataclasses import dataclass
from typing import Any

import pytest
from spied import Spied, tiny

from dllm_decode import (
    Block,
    CachePolicy,
    Canvas,
    NoVerifier,
    SelfVerify,
    SuffixWindow,
    Verifier,
    decode,
)
from dllm_decode.blocks import AdaptiveBlocks, BlockSchedule, MultiBlock, Sequential
from dllm_decode.compatibility import CACHES, KINDS, REFUSALS, Demands, refusal_of, table
from dllm_decode.session import Session
from eval.runs.names import parse_cache
from samplers import (
    ConfidenceThreshold,
    FixedSchedule,
    JointThreshold,
    Prophet,
    Sampler,
    State,
    Wino,
)


@dataclass(frozen=True)
class Writing(Verifier):
    """Says that it asks no sampler, and does."""

    @property
    def asks_sampler(self) -> bool:
        return False

    def advance(
        self, session: Session, sampler: Sampler, canvas: Canvas, block: Block, carry: State
    ) -> tuple[Canvas, State]:
        return NoVerifier().advance(session, sampler, canvas, block, carry)


PLAIN = FixedSchedule(2)
SAMPLERS: dict[str, Sampler] = {
    "block": PLAIN,
    "suffix": Prophet(PLAIN),
    "answer": Prophet(PLAIN, gap="all"),
}


@dataclass(frozen=True)
class Curious(ConfidenceThreshold):
    """Wants to know what the model says at committed positions."""

    @property
    def reads_committed(self) -> bool:
        return True


def made_of(demands: Demands) -> tuple[Sampler, Verifier, str]:
    """Finds a sampler, a verifier and a family that make such a decode."""
    sampler = Wino(0.3) if demands.leave_one_out else SAMPLERS[demands.scope]
    sampler = JointThreshold(0.5, 0.0, 2) if demands.edits else sampler
    sampler = Curious() if demands.reads_committed else sampler
    if demands.opens_parts and sampler == PLAIN and not demands.needs_whole_block:
        sampler = ConfidenceThreshold(0.9)
    verifier: Verifier = NoVerifier() if demands.asks_sampler else Writing()
    verifier = SelfVerify(2) if demands.looks_ahead else verifier
    family = "dream" if demands.is_shifted else "sdar" if demands.is_causal else "llada"
    return sampler, verifier, family


def schedule_of(demands: Demands) -> BlockSchedule:
    if demands.ends_anywhere:
        return AdaptiveBlocks((5, 6))
    return MultiBlock() if demands.opens_parts else Sequential()


def run(kind: str, cache: CachePolicy) -> tuple[Spied, Any]:
    sampler, verifier, family = made_of(KINDS[kind])
    model = Spied(tiny(family))
    return model, decode(
        model, [[5, 6, 7, 8]], sampler, cache=cache, verifier=verifier, gen_length=8,
        block_length=4, blocks=schedule_of(KINDS[kind]),
    )  # fmt: skip


@pytest.mark.parametrize("cache", CACHES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_tells_what_decode_does(kind: str, cache: CachePolicy) -> None:
    sampler, verifier, family = made_of(KINDS[kind])
    refusal = refusal_of(KINDS[kind], cache)
    if refusal is None:
        model, out = run(kind, cache)
        assert out.forwards == len(model.calls) > 0
        assert not (out.tokens == model.mask_id).any()
        return
    with pytest.raises(ValueError, match="got") as refused:
        run(kind, cache)
    message = str(refused.value)
    blocks = schedule_of(KINDS[kind])
    names = {"sampler": sampler, "cache": cache, "verifier": verifier, "blocks": blocks}
    for part in refusal.pair:
        assert (tiny(family).name if part == "model" else repr(names[part])) in message
    assert message.endswith(refusal.remedy)


def test_every_refusal_occurs_in_the_table() -> None:
    found = {refusal_of(demands, cache) for demands in KINDS.values() for cache in CACHES}
    assert found == {None, *REFUSALS}


def test_a_refusal_costs_no_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the model was called")

    monkeypatch.setattr(Spied, "predict", refuse)
    monkeypatch.setattr(Spied, "new_kv_cache", refuse)
    for kind, demands in KINDS.items():
        for cache in CACHES:
            if refusal_of(demands, cache):
                with pytest.raises(ValueError, match="got"):
                    run(kind, cache)


def test_the_table_has_a_column_for_every_cache_and_a_note_for_every_refusal() -> None:
    text = table()
    headings = text.splitlines()[0].split(" | ")[1:]
    # Defaults are left out, and the rest describes the cache all the same.
    assert [parse_cache(heading.strip("`| ")) for heading in headings] == [*CACHES]
    assert "=0" not in "".join(headings)
    for kind in KINDS:
        assert f"\n| {kind} | " in text
    for refusal in REFUSALS:
        assert refusal.remedy in text


@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_a_window_combines_as_what_is_in_it_but_with_no_one_who_looks_behind_or_remasks(
    cache: CachePolicy,
) -> None:
    for demands in KINDS.values():
        fits = refusal_of(demands, cache) is None
        fits = fits and demands.scope == "block" and not demands.leave_one_out
        assert (refusal_of(demands, SuffixWindow(cache)) is None) == fits

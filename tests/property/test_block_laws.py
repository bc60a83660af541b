"""Laws of block schedules over samplers and caches, on tiny checkpoints in float64."""

from typing import Any

import pytest
import torch
from samplers_under_test import FEW, INSTANCES
from spied import FAMILIES, Spied, tiny

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    MultiBlock,
    NoCache,
    PrefixCache,
    SelfVerify,
    Sequential,
    SettledCache,
    StepEvent,
    SuffixWindow,
    decode,
    decode_many,
)
from dllm_decode.blocks import ALL_SCHEDULES, parse
from samplers import ConfidenceThreshold, CreditDecoding, EntropyThreshold, Sampler

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
SCHEDULES = [
    MultiBlock(4),
    MultiBlock(4, 0.5, 0.5, order="entropy"),
    MultiBlock(3, 0.0, 0.0),
    MultiBlock(4, 0.0, 1.0, max_open=2),
    MultiBlock(4, 1.0, 1.0),
]
LIKE_SEQUENTIAL = MultiBlock(4, 1.0, 1.0)
CACHES: list[CachePolicy] = [
    NoCache(),
    PrefixCache(),
    DualCache(),
    DualCache(refresh_every=3, before=2, after=3),
    FreeCache(),
    DelayedCache(refresh_every=3, warm_up=1),
    SettledCache(2),
    SuffixWindow(PrefixCache(), 2),
    SuffixWindow(DelayedCache(refresh_every=3, warm_up=1), 1),
]
STEPWISE = [
    sampler
    for sampler in INSTANCES
    if not sampler.needs_whole_block and sampler.scope == "block" and not sampler.leave_one_out
]
STATEFUL = CreditDecoding(ConfidenceThreshold(0.6))
SCHEDULE = pytest.mark.parametrize("blocks", SCHEDULES, ids=repr)


def answer(
    family: str,
    sampler: Sampler,
    blocks: BlockSchedule,
    *,
    prompts: list[list[int]] = PROMPTS,
    gen_length: int = 14,
    **options: Any,
) -> Any:
    options = {"stop_at_eos": False, **options}
    model = tiny(family)
    if model.causal_block_length:
        pytest.skip("its blocks have one length")
    return decode(model, prompts, sampler, blocks=blocks, gen_length=gen_length, **options)


class Watch:
    """Observer: keeps all steps."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []

    def __call__(self, event: StepEvent) -> None:
        self.events.append(event)


@pytest.mark.parametrize("blocks", [Sequential(), Sequential(8), *SCHEDULES], ids=repr)
def test_a_schedule_is_its_repr(blocks: BlockSchedule) -> None:
    assert parse(repr(blocks)) == blocks
    assert type(blocks) in ALL_SCHEDULES


@pytest.mark.exhaustive(10)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", [*STEPWISE, STATEFUL], ids=repr)
def test_opening_and_forcing_at_the_end_of_a_block_is_one_block_after_another(
    sampler: Sampler, temperature: float
) -> None:
    options: dict[str, Any] = {"temperature": temperature}
    plain = answer("llada", sampler, Sequential(4), **options)
    several = answer("llada", sampler, LIKE_SEQUENTIAL, **options)
    assert torch.equal(several.tokens, plain.tokens)
    assert torch.equal(several.nfe, plain.nfe)
    assert torch.equal(several.query_positions, plain.query_positions)


@pytest.mark.exhaustive(10)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_the_same_with_every_cache_and_family(family: str, cache: CachePolicy) -> None:
    for sampler in (ConfidenceThreshold(0.6), STATEFUL):
        for prompt in PROMPTS:
            plain, several = (
                answer(family, sampler, blocks, prompts=[prompt], cache=cache)
                for blocks in (Sequential(4), LIKE_SEQUENTIAL)
            )
            assert torch.equal(several.tokens, plain.tokens)
            assert torch.equal(several.nfe, plain.nfe)
            assert torch.equal(several.query_positions, plain.query_positions)


@SCHEDULE
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_keeps_its_own_pace(family: str, blocks: BlockSchedule) -> None:
    for sampler in (ConfidenceThreshold(0.6), STATEFUL, EntropyThreshold(0.5)):
        together = answer(family, sampler, blocks)
        alone = [answer(family, sampler, blocks, prompts=[prompt]) for prompt in PROMPTS]
        assert torch.equal(together.tokens, torch.cat([out.tokens for out in alone]))
        assert torch.equal(together.nfe, torch.cat([out.nfe for out in alone]))


@pytest.mark.exhaustive(8)
@SCHEDULE
@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_every_cache_finishes_every_answer(blocks: BlockSchedule, cache: CachePolicy) -> None:
    for sampler in (ConfidenceThreshold(0.6), STATEFUL):
        out = answer("dream", sampler, blocks, cache=cache)
        assert not (out.tokens == tiny("dream").mask_id).any()


@SCHEDULE
@pytest.mark.parametrize(
    "cache", [PrefixCache(refresh_every=1), DualCache(before=100, after=100)], ids=repr
)
def test_a_cache_that_computes_everything_is_no_cache(
    blocks: BlockSchedule, cache: CachePolicy
) -> None:
    for family in ("llada", "dream"):
        exact, cached = (answer(family, STATEFUL, blocks, cache=c) for c in (NoCache(), cache))
        assert torch.equal(cached.tokens, exact.tokens)
        assert torch.equal(cached.nfe, exact.nfe)


@SCHEDULE
def test_blocks_open_one_a_step_and_only_open_masks_are_committed(blocks: MultiBlock) -> None:
    watch, length = Watch(), blocks.block_length
    assert length is not None
    answer("llada", ConfidenceThreshold(0.6), blocks, observers=[watch])
    seen: dict[int, int] = {}
    num_early = 0
    for event in watch.events:
        before, after = event.before, event.after
        assert before.opened is not None
        assert before.due is not None
        committed = before.masked & ~after.masked
        assert not (committed & ~before.opened).any()
        for row, opened, due, gained, masked in zip(
            before.rows.tolist(), before.opened, before.due, committed, before.masked, strict=True
        ):
            num_open = -(-int(opened.sum()) // length)
            assert opened[: int(opened.sum())].all()
            assert num_open - seen.get(row, 1) <= 1 or blocks.open_at == 1.0
            seen[row] = num_open
            assert not due.any() or (due & gained).any()
            busy = {int(at) // length for at in (masked & opened).nonzero()}
            assert 1 <= len(busy) <= (blocks.max_open or 99)
            num_early += len(busy) > 1
    assert (num_early > 0) == (blocks != LIKE_SEQUENTIAL)


def test_given_tokens_stay_and_full_blocks_are_passed_at_once() -> None:
    mask = tiny("llada").mask_id
    template = [5, 6, 7, 8, 9, 10, 11, 12, mask, mask, 3, mask, mask, 4]
    for blocks in SCHEDULES:
        out = answer(
            "llada", FEW[0], blocks, prompts=PROMPTS[:2], templates=[template, [mask] * 14]
        )
        given = [at for at, token in enumerate(template) if token != mask]
        assert out.tokens[0, given].tolist() == [template[at] for at in given]
        assert not (out.tokens == mask).any()


def test_nothing_opens_behind_an_eos_where_the_answer_ends_with_it() -> None:
    mask, eos = tiny("llada").mask_id, tiny("llada").eos_ids[0]
    template = [mask] * 2 + [eos] + [mask] * 11
    seen = {}
    for stops in (True, False):
        watch = Watch()
        answer(
            "llada", ConfidenceThreshold(1.0), MultiBlock(4, 0.0, 0.0), prompts=PROMPTS[:1],
            templates=[template], stop_at_eos=stops, observers=[watch],
        )  # fmt: skip
        seen[stops] = max(int(event.before.opened.sum()) for event in watch.events)  # type: ignore[union-attr]
    assert seen == {True: 4, False: 14}


@SCHEDULE
def test_many_prompts_are_answered_as_in_one_batch(blocks: BlockSchedule) -> None:
    model = tiny("llada")
    prompts = [*PROMPTS, [1, 2, 3], [400] * 4]
    options: dict[str, Any] = {"blocks": blocks, "gen_length": 14}
    whole = decode(model, prompts, STATEFUL, **options)
    many = list(decode_many(model, prompts, STATEFUL, num_rows=2, **options))
    assert torch.equal(torch.cat([out.tokens for out in many]), whole.tokens)
    assert torch.equal(torch.cat([out.nfe for out in many]), whole.nfe)


def test_only_open_masks_have_logits() -> None:
    spied, watch = Spied(tiny("llada")), Watch()
    decode(
        spied, PROMPTS, FEW[0], blocks=MultiBlock(8), gen_length=64, stop_at_eos=False,
        observers=[watch],
    )  # fmt: skip
    for call, event in zip(spied.calls, watch.events, strict=True):
        most = int(event.before.open_masks.sum(-1).max())
        assert call.wanted is not None
        assert call.wanted.shape[1] == min(64, -(-most // 8) * 8)


@pytest.mark.parametrize(
    ("sampler", "options", "said"),
    [
        *((sampler, {}, "Sequential") for sampler in INSTANCES if sampler not in STEPWISE),
        (FEW[0], {"verifier": SelfVerify()}, "NoVerifier"),
        (FEW[0], {"block_length": 8}, "block_length must be said once"),
    ],
)
def test_what_cannot_combine_is_refused_by_name(
    sampler: Sampler, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        answer("llada", sampler, MultiBlock(4), **options)


@pytest.mark.parametrize(
    "arguments",
    [{"open_at": 1.5}, {"force_at": -0.1}, {"max_open": 0}, {"block_length": 0}, {"order": "x"}],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        MultiBlock(**arguments)

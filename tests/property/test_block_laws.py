"""Laws of block schedules over samplers and caches, on tiny checkpoints in float64."""

from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, FEW, INSTANCES
from tiny_models import FAMILIES, Spied, tiny

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    MultiBlock,
    SelfVerify,
    Sequential,
    StepEvent,
    SubBlocks,
    decode,
)
from dllm_decode.blocks import ALL_SCHEDULES, parse
from samplers import ConfidenceThreshold, CreditDecoding, Sampler
from samplers.facts import Fact

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
# Enough of them that one is predicted in most windows.
DELIMITERS = tuple(range(0, 512, 7))
PIPELINES = [
    MultiBlock(4),
    MultiBlock(4, 0.5, 0.5, order="entropy"),
    MultiBlock(3, 0.0, 0.0),
    MultiBlock(4, 0.0, 0.5, forces="every"),
    MultiBlock(4, 0.0, 1.0, max_open=2),
    MultiBlock(4, 1.0, 1.0),
]
ADAPTIVE = AdaptiveBlocks(DELIMITERS, 0.05, 4, 0.5)
SCHEDULES: list[BlockSchedule] = [
    *PIPELINES,
    ADAPTIVE,
    AdaptiveBlocks(DELIMITERS, 0.3, 5, 0.1),
    SubBlocks(8, 3),
    SubBlocks(4, 1),
]
# Each is the same as blocks of 4, one after another.
LIKE_SEQUENTIAL: list[BlockSchedule] = [MultiBlock(4, 1.0, 1.0), AdaptiveBlocks((), 0.0, 4)]
STEPWISE = [sampler for sampler in INSTANCES if Fact.WHOLE_BLOCKS not in sampler.needs]
STATEFUL = CreditDecoding(ConfidenceThreshold(0.6))


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
    length = model.causal_block_length
    if length and (Fact.SEES_BOTH_WAYS in blocks.needs or (blocks.block_length or 0) % length):
        pytest.skip("its blocks have one length")
    return decode(model, prompts, sampler, blocks=blocks, gen_length=gen_length, **options)


@pytest.mark.parametrize("blocks", [Sequential(), Sequential(8), *SCHEDULES], ids=repr)
def test_a_schedule_is_its_repr(blocks: BlockSchedule) -> None:
    assert parse(repr(blocks)) == blocks
    assert type(blocks) in ALL_SCHEDULES


@pytest.mark.exhaustive(10)
@pytest.mark.parametrize("blocks", LIKE_SEQUENTIAL, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", [*STEPWISE, STATEFUL], ids=repr)
def test_opening_and_forcing_at_the_end_of_a_block_is_one_block_after_another(
    sampler: Sampler, temperature: float, blocks: BlockSchedule
) -> None:
    options: dict[str, Any] = {"temperature": temperature}
    plain = answer("llada", sampler, Sequential(4), **options)
    several = answer("llada", sampler, blocks, **options)
    assert torch.equal(several.tokens, plain.tokens)
    assert torch.equal(several.nfe, plain.nfe)
    assert torch.equal(several.query_positions, plain.query_positions)


@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("like", LIKE_SEQUENTIAL, ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_the_same_with_every_cache_and_family(
    family: str, cache: CachePolicy, like: BlockSchedule
) -> None:
    for sampler in (ConfidenceThreshold(0.6), STATEFUL):
        for prompt in PROMPTS:
            plain, several = (
                answer(family, sampler, blocks, prompts=[prompt], cache=cache)
                for blocks in (Sequential(4), like)
            )
            assert torch.equal(several.tokens, plain.tokens)
            assert torch.equal(several.nfe, plain.nfe)
            assert torch.equal(several.query_positions, plain.query_positions)


@pytest.mark.parametrize("blocks", PIPELINES, ids=repr)
def test_blocks_open_one_a_step_and_only_open_masks_are_committed(blocks: MultiBlock) -> None:
    events, length = list[StepEvent](), blocks.block_length
    assert length is not None
    answer("llada", ConfidenceThreshold(0.6), blocks, observers=[events.append])
    seen: dict[int, int] = {}
    num_early = num_forced = 0
    for event in events:
        masked = event.before.masked
        committed = masked & ~event.after.masked
        for row, has_mask, is_new in zip(event.rows, masked, committed, strict=True):
            opening, request = row.opening, row.request.index
            num_open, due, _ = opening.note
            assert num_open - seen.get(request, 1) <= 1 or blocks.open_at == 1.0
            seen[request] = num_open
            busy, gained = (
                {(int(at) - row.first) // length for at in where[: opening.stop].nonzero()}
                for where in (has_mask, is_new)
            )
            assert not is_new[: opening.start].any()
            assert not is_new[opening.stop :].any()
            assert opening.stop == min(row.first + (max(busy) + 1) * length, row.end)
            assert max(busy) < num_open
            assert gained >= set(due)
            assert 1 <= len(busy) <= (blocks.max_open or 99)
            num_early += len(busy) > 1
            num_forced += len(busy) > 1 and bool(due)
    assert (num_early > 0) == (num_forced > 0) == (blocks.open_at < 1.0)


def test_a_block_ends_at_the_likeliest_delimiter_among_those_that_follow() -> None:
    events, mask = list[StepEvent](), tiny("llada").mask_id
    answer("llada", ConfidenceThreshold(0.6), ADAPTIVE, observers=[events.append])
    blocks: dict[int, list[int]] = {}
    ended = 0
    for event in events:
        for row, number in enumerate(event.requests.tolist()):
            first = event.rows[row].prompt_length
            before = event.before.masked[row, first:]
            after = event.after.tokens[row, first:]
            opened = [at for at in range(14) if bool(event.view.masked[row, at])]
            past = blocks.setdefault(number, [0])
            if not before[: past[-1]].any():
                start, window = past[-1], range(past[-1], min(past[-1] + 7, 14))
                found = {
                    at: float(event.view.confidence[row, at])
                    for at in window
                    if int(event.view.most_likely[row, at]) in DELIMITERS
                }
                assert opened[0] == start
                past.append(opened[-1] + 1)
                # The view shows no more than the block, so a delimiter is its last position.
                ended += past[-1] - 1 in found and past[-1] - start != 4
            assert all(int(after[at]) == mask for at in range(past[-1], 14))
            assert opened[-1] < past[-1]
    assert all(ends[-1] == 14 for ends in blocks.values())
    assert ended


def test_a_given_delimiter_ends_a_block() -> None:
    mask, events = tiny("llada").mask_id, list[StepEvent]()
    template = [mask, mask, DELIMITERS[3], *[mask] * 11]
    answer(
        "llada", ConfidenceThreshold(1.0), AdaptiveBlocks(DELIMITERS, 1.0, 8), prompts=PROMPTS[:1],
        templates=[template], observers=[events.append],
    )  # fmt: skip
    first = len(PROMPTS[0])
    gained = [int((e.before.masked & ~e.after.masked)[0].nonzero()) for e in events]
    assert set(gained[:2]) == {first, first + 1}


@pytest.mark.parametrize("family", ["llada", "fast_dllm_v2"])
def test_sub_blocks_are_filled_from_left_to_right_at_each_row_s_own_pace(family: str) -> None:
    events, shift = list[StepEvent](), tiny(family).logit_shift
    sampler, blocks = ConfidenceThreshold(0.3), SubBlocks(8, 3)
    answer(family, sampler, blocks, observers=[events.append], gen_length=20)
    seen: dict[int, list[int]] = {}
    apart = 0
    for event in events:
        places = []
        for row, number in enumerate(event.requests.tolist()):
            gained = (event.before.masked & ~event.after.masked)[row].nonzero().squeeze(-1)
            gained = (gained - event.rows[row].first).tolist()
            units = {at // 8 * 3 + at % 8 // 3 for at in gained}
            assert len(units) == 1
            places += units
            if shift and any(at % 8 == 0 for at in gained):
                assert len(gained) == 1
            seen.setdefault(number, []).extend(units)
        apart += len(set(places)) > 1
    assert all(places == sorted(places) for places in seen.values())
    assert apart


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
        events: list[StepEvent] = []
        answer(
            "llada", ConfidenceThreshold(1.0), MultiBlock(4, 0.0, 0.0), prompts=PROMPTS[:1],
            templates=[template], stop_at_eos=stops, observers=[events.append],
        )  # fmt: skip
        (rows,) = zip(*(event.rows for event in events), strict=True)
        seen[stops] = max(row.opening.stop - row.first for row in rows)
    assert seen == {True: 4, False: 14}


def test_only_open_masks_have_logits() -> None:
    spied, events = Spied(tiny("llada")), list[StepEvent]()
    decode(
        spied, PROMPTS, FEW[0], blocks=MultiBlock(8), gen_length=64, stop_at_eos=False,
        observers=[events.append],
    )  # fmt: skip
    for call, event in zip(spied.calls, events, strict=True):
        most = max(
            int(masked[row.opening.start : row.opening.stop].sum())
            for row, masked in zip(event.rows, event.before.masked, strict=True)
        )
        assert call.wanted is not None
        assert call.wanted.shape[1] == min(64, -(-most // 8) * 8)


@pytest.mark.parametrize(
    ("sampler", "options", "said"),
    [
        (FEW[1], {}, "Sequential"),
        (FEW[0], {"verifier": SelfVerify()}, "NoVerifier"),
        (FEW[0], {"block_length": 8}, "block_length must be said once"),
    ],
)
@pytest.mark.parametrize("blocks", [MultiBlock(4), ADAPTIVE, SubBlocks(4, 2)], ids=repr)
def test_what_cannot_combine_is_refused_by_name(
    sampler: Sampler, options: dict[str, Any], said: str, blocks: BlockSchedule
) -> None:
    with pytest.raises(ValueError, match=said):
        answer("llada", sampler, blocks, **options)


def test_blocks_that_end_anywhere_need_a_model_that_sees_everything() -> None:
    with pytest.raises(ValueError, match="in which every column sees every other") as refused:
        decode(tiny("sdar"), PROMPTS, FEW[0], blocks=ADAPTIVE, gen_length=8)
    assert str(refused.value).endswith("or another block schedule.")

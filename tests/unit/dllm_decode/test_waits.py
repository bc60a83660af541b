"""How often the host waits for an accelerator: once a step, to learn whether a block is done."""

from collections import Counter
from typing import Any

import pytest
import torch
from plugins_under_test import INSTANCES
from pretended import Accelerator
from tiny_models import FAMILIES, LAW_OPTIONS, MODELS
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import (
    AdaptiveBlocks,
    DelayedCache,
    DualCache,
    FreeCache,
    Gains,
    MultiBlock,
    NoCache,
    PrefixCache,
    SelfVerify,
    StepEvent,
    SubBlocks,
    Trace,
    decode,
)
from dllm_decode.models import MaskedTransformer
from samplers import ConfidenceThreshold, FixedSchedule, Learn2PD, Prophet

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
# The host also sends observers the numbers of the rows.
ONCE = {"tolist in round._on_host": 1, "tensor in round._event": 1}
READS = {"tolist in round._on_host": 1}
CACHES = (
    NoCache(), PrefixCache(), PrefixCache(2), DualCache(), DualCache(2, before=1, after=1),
    FreeCache(), FreeCache("official"),
)  # fmt: skip


def reads(step: Counter[str]) -> dict[str, int]:
    """Returns the waits in which the host reads; in the others it sends, and reads nothing."""
    sends = ("tensor in", "copy to the device", "index by a list")
    return {place: number for place, number in step.items() if not place.startswith(sends)}


class Watched:
    """A model on an accelerator whose waits are counted step by step."""

    def __init__(self, source: Any, **options: Any) -> None:
        self.accelerator = Accelerator()
        with self.accelerator:
            self.model: MaskedTransformer = load_model(source, device="cuda", **options)[0]
        self.model.graphs = False

    def waits(self, sampler: Any, *others: Any, **options: Any) -> list[Counter[str]]:
        """Returns the waits of each step before which no row came or left, other observers' too."""
        found: list[Counter[str]] = []
        last: list[int] | None = None

        def count(event: StepEvent) -> None:
            nonlocal last
            here = [row.request.index for row in event.rows]
            if here == last:
                found.append(Counter(self.accelerator.waits))
            last = here
            self.accelerator.waits.clear()

        arguments = {"prompts": PROMPTS, "gen_length": 16, "block_length": 8, **options}
        with self.accelerator:
            decode(
                self.model,
                sampler=sampler,
                stop_at_eos=False,
                observers=[*others, count],
                **arguments,
            )
        return found


@pytest.fixture(scope="module")
def watched() -> dict[str, Watched]:
    return {
        family: Watched(MODELS / family, dtype=torch.float64, **LAW_OPTIONS[family])
        for family in FAMILIES
    }


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_waits_once_a_step_with_every_cache(
    family: str, watched: dict[str, Watched]
) -> None:
    for cache in CACHES:
        waits = watched[family].waits(FixedSchedule(6), cache=cache, gen_length=8)
        assert len(waits) >= 5
        assert all(reads(step) == READS for step in waits), cache
        # Where columns change, also at each refresh, the host sends them.
        if "refresh_every=2" not in repr(cache):
            assert ONCE in waits, cache


@pytest.mark.parametrize(
    "blocks",
    [MultiBlock(8, 0.1, 0.5, forces="every"), AdaptiveBlocks((3, 5, 30), 0.05, 8), SubBlocks(8, 3)],
    ids=repr,
)
def test_the_host_waits_once_a_step_under_every_schedule(
    blocks: Any, watched: dict[str, Watched]
) -> None:
    options = {"blocks": blocks, "block_length": 8}
    waits = watched["llada"].waits(ConfidenceThreshold(0.9), **options)
    # The host sends what is open.
    assert len(waits) >= 3
    assert all(reads(step) == READS for step in waits)
    assert max(step.total() for step in waits) <= 6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_reads_once_a_step_where_columns_differ_by_row(
    family: str, watched: dict[str, Watched]
) -> None:
    """Only the device knew how many columns such a policy computes, so that the host read twice."""
    waits = watched[family].waits(FixedSchedule(6), cache=DelayedCache(3, 1), gen_length=8)
    assert len(waits) >= 5
    assert all(reads(step) == READS for step in waits)


@pytest.mark.exhaustive(14)
@pytest.mark.parametrize("sampler", INSTANCES, ids=repr)
def test_the_host_waits_once_a_step_with_every_sampler(
    sampler: Any, watched: dict[str, Watched]
) -> None:
    waits = watched["llada"].waits(sampler)
    assert all(reads(step) == READS for step in waits)
    # At thresholds this low, or of infinity, a block is one step.
    in_one_step = ("inf", "0.3)", "quota='least'")
    assert waits or any(part in repr(sampler) for part in in_one_step)


def test_the_host_waits_once_a_step_where_tokens_are_drawn(watched: dict[str, Watched]) -> None:
    waits = watched["dream"].waits(FixedSchedule(4), temperature=0.7)
    assert all(reads(step) == READS for step in waits)
    assert len(waits) >= 6


@pytest.mark.parametrize("marker", [(), (41, 300)])
def test_prophet_asks_whether_to_draw_what_lies_behind(
    marker: tuple[int, ...], watched: dict[str, Watched]
) -> None:
    sampler = Prophet(FixedSchedule(4), thresholds=(99.0, 99.0, 99.0), marker=marker)
    plain = watched["llada"].waits(sampler)
    assert all(reads(step) == READS for step in plain)
    drawn = watched["llada"].waits(sampler, temperature=0.7)
    asked = READS | {"__bool__ in prophet.Prophet.step": 1}
    assert all(reads(step) == asked for step in drawn)
    assert len(plain) == len(drawn) >= 6


@pytest.mark.parametrize("evaluate", ["batch", "tree"])
def test_self_verification_waits_at_most_twice_a_step(
    evaluate: Any, watched: dict[str, Watched]
) -> None:
    """Once it was 14 to 19 times a forward: for every draft, and to tell states apart."""
    verifier = SelfVerify(4, evaluate)
    options: Any = {"verifier": verifier, "cache": DualCache(), "prompts": PROMPTS[:1]}
    waits = watched["llada"].waits(FixedSchedule(8), **options)
    drafts = READS | {"tolist in self_verify.SelfVerify._draft": 1}
    assert len(waits) >= 14
    assert all(reads(step) in (READS, drafts) for step in waits)
    assert any(reads(step) == drafts for step in waits)


def test_self_verification_waits_for_rows_that_part(watched: dict[str, Watched]) -> None:
    """Which rows go on is sent to the device, and read nowhere."""
    waits = watched["llada"].waits(FixedSchedule(8), verifier=SelfVerify(4), cache=DualCache())
    read = {place for step in waits for place in reads(step)}
    assert read - READS.keys() == {"tolist in self_verify.SelfVerify._draft"}


def test_a_filter_asks_nothing_once_it_is_there() -> None:
    options: Any = {"prompts": [[5, 6, 7], [8]], "gen_length": 32, "block_length": 32}
    # Its bfloat16 would try kernels that a pretended device cannot run.
    waits = Watched("mini", fused=False).waits(Learn2PD("mini", 0.9), **options)
    assert waits
    assert all(reads(step) == READS for step in waits)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_recorded_commits_make_no_step_wait(top_p: float, watched: dict[str, Watched]) -> None:
    options: Any = {"temperature": 0.7, "top_p": top_p, "return_logprobs": True}
    waits = watched["llada"].waits(FixedSchedule(4), **options)
    assert len(waits) >= 6
    assert all(reads(step) == READS for step in waits)


def test_observers_wait_for_all_rows_at_once(watched: dict[str, Watched]) -> None:
    waits = watched["llada"].waits(FixedSchedule(4), Gains())
    assert all(reads(step) == READS for step in waits)
    # Five tensors.
    waits = watched["llada"].waits(FixedSchedule(4), Trace())
    assert {sum(reads(step).values()) for step in waits} == {6}

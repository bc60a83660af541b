"""What a step costs an accelerator beside the model: one wait of the host, and few operations."""

from collections import Counter
from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, INSTANCES
from pretended import Accelerator, Operations
from tiny_models import FAMILIES, LAW_OPTIONS, MODELS, tiny
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import (
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DualCache,
    FreeCache,
    Gains,
    MultiBlock,
    NoCache,
    PrefixCache,
    SelfVerify,
    Sequential,
    StepEvent,
    SubBlocks,
    Trace,
    decode,
)
from dllm_decode.models import MaskedTransformer
from samplers import ConfidenceThreshold, FixedSchedule, Learn2PD, Prophet, Sampler

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
# The host also sends observers the numbers of the rows.
ONCE = {"tolist in round._on_host": 1, "tensor in round._event": 1}
STEADY = (NoCache(), PrefixCache(), DualCache(), FreeCache("clean"), FreeCache("official"))
READS = {"tolist in round._on_host": 1}


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

    def waits(self, sampler: Any, *, observers: Any = (), **options: Any) -> list[Counter[str]]:
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
                self.model, sampler=sampler, stop_at_eos=False, observers=[*observers, count],
                **arguments,
            )  # fmt: skip
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
    """Once only the device knew which columns some policies compute: the host read twice."""
    for cache in (NoCache(), *CACHES):
        waits = watched[family].waits(FixedSchedule(6), cache=cache, gen_length=8)
        assert len(waits) >= 5
        assert all(reads(step) == READS for step in waits), cache
        # Where columns change, also at each refresh, the host sends them.
        assert ONCE in waits or cache not in STEADY, cache


DRAWN: Any = {"sampler": FixedSchedule(4), "temperature": 0.7}
# Family, options, and the least number of steps; in none of them does the host read twice.
WAYS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{
        repr(blocks): ("llada", {"sampler": ConfidenceThreshold(0.9), "blocks": blocks}, 3)
        for blocks in (MultiBlock(8, 0.1, 0.5, forces="every"),
                       AdaptiveBlocks((3, 5, 30), 0.05, 8), SubBlocks(8, 3))
    },
    "tokens are drawn": ("dream", DRAWN, 6),
    "commits are recorded": ("llada", DRAWN | {"return_logprobs": True}, 6),
    "commits are recorded, cut": ("llada", DRAWN | {"return_logprobs": True, "top_p": 0.8}, 6),
    "gains": ("llada", {"sampler": FixedSchedule(4), "observers": [Gains()]}, 6),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_host_reads_once_a_step(way: str, watched: dict[str, Watched]) -> None:
    family, options, least = WAYS[way]
    waits = watched[family].waits(**options)
    assert len(waits) >= least
    assert all(reads(step) == READS for step in waits)
    # What is open is sent, and the numbers of the rows.
    assert max(step.total() for step in waits) <= 6


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


@pytest.mark.parametrize(
    ("evaluate", "prompts"), [("batch", PROMPTS[:1]), ("tree", PROMPTS[:1]), ("batch", PROMPTS)]
)
def test_self_verification_waits_at_most_twice_a_step(
    evaluate: Any, prompts: list[list[int]], watched: dict[str, Watched]
) -> None:
    """Once it was 14 to 19 times a forward: for every draft, and to tell states apart."""
    options: Any = {"verifier": SelfVerify(4, evaluate), "cache": DualCache(), "prompts": prompts}
    waits = watched["llada"].waits(FixedSchedule(8), **options)
    drafts = READS | {"tolist in self_verify.SelfVerify._draft": 1}
    assert waits
    # Which rows go on is sent to the device, and read nowhere.
    assert all(reads(step) in (READS, drafts) for step in waits)
    assert any(reads(step) == drafts for step in waits)


def test_a_filter_asks_nothing_once_it_is_there() -> None:
    options: Any = {"prompts": [[5, 6, 7], [8]], "gen_length": 32, "block_length": 32}
    # Its bfloat16 would try kernels that a pretended device cannot run.
    waits = Watched("mini", fused=False).waits(Learn2PD("mini", 0.9), **options)
    assert waits
    assert all(reads(step) == READS for step in waits)


def test_a_trace_waits_for_all_rows_at_once(watched: dict[str, Watched]) -> None:
    waits = watched["llada"].waits(FixedSchedule(4), observers=[Trace()])
    # Five tensors.
    assert {sum(reads(step).values()) for step in waits} == {6}


def operations_a_step(sampler: Sampler, prompts: list[list[int]], **options: Any) -> float:
    """Counts the operations outside of the model, views included."""
    model, told = tiny("llada"), list[None]()
    operations = Operations(lambda *_: told.append(None))
    with pytest.MonkeyPatch.context() as patch, operations:
        patch.setattr(model, "predict", operations.left_out(model.predict))
        out = decode(
            model, prompts, sampler, gen_length=64, block_length=32, stop_at_eos=False, **options
        )
    assert out.forwards >= 60
    return len(told) / out.forwards


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("sampler", [FixedSchedule(32), ConfidenceThreshold(1.0)], ids=repr)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_step_is_few_operations_beside_the_model(
    num_rows: int, sampler: Sampler, cache: CachePolicy
) -> None:
    """Once it was 180; most of what a step needs is the same in the whole block."""
    prompts = [[3, 4, 5, *range(6, 6 + row)] for row in range(num_rows)]
    assert 40 < operations_a_step(sampler, prompts, cache=cache) < 135


@pytest.mark.parametrize(
    "blocks", [MultiBlock(32, 1.0, 1.0), AdaptiveBlocks((5,), 1.0), SubBlocks(32, 8)], ids=repr
)
def test_a_schedule_costs_few_operations_where_nothing_opens(blocks: BlockSchedule) -> None:
    """MultiBlock cost 75 a step: it decided what is open on the device, at every step."""
    one, other = (
        operations_a_step(ConfidenceThreshold(1.0), [[3, 4, 5]], blocks=schedule)
        for schedule in (Sequential(), blocks)
    )
    assert other - one < 12

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from plugins_under_test import CACHES, one_of_each_kind, plugin

from dllm_decode import (
    S2D2,
    AdaptiveBlocks,
    BlockSchedule,
    CachePolicy,
    DelayedCache,
    DualCache,
    Look,
    MultiBlock,
    NoCache,
    NoVerifier,
    Opening,
    SelfVerify,
    Sequential,
    SlidingWindow,
    SubBlocks,
    Verifier,
)
from dllm_decode.core.columns import columns
from dllm_decode.engine.look import look
from dllm_decode.testing import check_laws
from samplers import Decision, Fact, FixedSchedule, ReMDM, testing
from samplers.facts import PlugIn
from samplers.logits.statistics import highest_one

PLUGINS: list[PlugIn] = [
    *CACHES, NoCache(), Sequential(), Sequential(8), SubBlocks(8, 3), MultiBlock(),
    MultiBlock(4, 0.5, 0.25, max_open=2, order="entropy", forces="every"),
    AdaptiveBlocks((7, 14), 0.3, 5, 0.1), NoVerifier(), SelfVerify(4), SelfVerify(3, "tree"),
    SlidingWindow(5, 12), SlidingWindow(3, 5, "block"), S2D2(), ReMDM(8, "confidence"),
]  # fmt: skip


@pytest.mark.parametrize("kept", one_of_each_kind(PLUGINS))
def test_plugins_of_this_package_keep_the_laws(kept: PlugIn) -> None:
    check_laws(kept)


def test_a_plugin_that_is_not_exact_has_other_tokens() -> None:
    check_laws(SelfVerify(4), same_as=NoVerifier())
    with pytest.raises(
        AssertionError, match=r"tokens of NoCache\(\): token \d+ at position \d"
    ) as one:
        check_laws(DualCache(), same_as=NoCache())
    assert "[" not in str(one.value)


def test_a_cache_that_claims_to_be_replayed_and_counts_forwards_is_found() -> None:
    @dataclass(frozen=True)
    class Claims(DelayedCache):
        gives = DelayedCache().gives | {Fact.EXACT_REPLAY}

    with pytest.raises(
        AssertionError, match=r"under SelfVerify\(2\), .* at position \d of row \d, got \d+"
    ):
        check_laws(Claims(refresh_every=3))


def test_a_cache_that_remembers_earlier_decodes_is_found() -> None:
    calls: list[int] = []

    def columns_to_compute(self: Any, query: Any) -> Any:
        calls.append(1)
        return columns((0 if len(calls) % 3 else query.block[0], query.end))

    with pytest.raises(AssertionError, match=r"must have the same tokens (alone|a second time)"):
        check_laws(plugin(CachePolicy, columns_to_compute=columns_to_compute))


def test_a_verifier_that_looks_at_the_size_of_its_batch_is_found() -> None:
    def crowded(self: Any, decoder: Any, state: Any) -> Any:
        state, seen = look(decoder, state)
        view = seen.view
        best = highest_one(view.confidence, view.eligible)
        commit = best if len(state.rows) > 1 else view.eligible
        return state, Look(view, seen.window, decision=Decision(commit))

    verifier = plugin(
        Verifier, look=crowded, asks_sampler=False,
        max_steps=lambda self, sampler, num_masks: num_masks,
    )  # fmt: skip
    with pytest.raises(
        AssertionError, match=r"must have the same (tokens|nfe) alone as in a batch"
    ):
        check_laws(verifier, sampler=FixedSchedule(3))


def test_blocks_that_end_where_those_of_one_model_end_by_chance_are_found() -> None:
    """Blocks of 4, 8 and 16 tokens passed, because the only block-causal model had blocks of 4."""

    def opening(self: Any, row: Any, block_length: int, shift: int) -> Opening:
        start, length = row.blocks_start, 4
        while start + length <= row.first_unsettled:
            start, length = start + length, 2 * length
        return Opening.of_block(start, min(start + length, row.end))

    doubling = plugin(
        BlockSchedule, opening=opening, gives=frozenset({Fact.WHOLE_BLOCKS}),
        window_length=lambda self, block_length, answer_length: answer_length,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"at a multiple of 6 columns, .* Fact.SEES_BOTH_WAYS"):
        check_laws(doubling)


def test_a_plugin_that_is_not_its_configuration_is_found() -> None:
    @dataclass(frozen=True)
    class Unequal(NoCache):
        weights: torch.nn.Module = field(default_factory=lambda: torch.nn.Linear(2, 2))

    with pytest.raises(AssertionError, match=r"A copy of .* must be equal to it"):
        check_laws(Unequal())


def test_a_plugin_that_fits_nothing_is_found() -> None:
    unheard = Fact("cache", "a cache policy that nobody has written", "none")
    with pytest.raises(AssertionError, match=r"must fit a model and a sampler. .* nobody has"):
        check_laws(plugin(FixedSchedule, needs=frozenset({Fact.HAS_MASK, unheard})))


@pytest.mark.usefixtures("no_checks_of_types")
def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(ValueError, match=r"plugin must be an instance of a sampler, .* got 'Dual"):
        check_laws("DualCache()")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"plugin must be an instance of a sampler"):
        check_laws(DualCache)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got DualCache.* `dllm_decode.testing.check_laws` takes"):
        testing.check_rule(DualCache())  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ({"schedule": Sequential(4)},
         r"given as sampler, verifier, blocks, got schedule=.* Write blocks=Sequential\(block_le"),
        ({"sampler": Sequential(4)}, r"got sampler=Sequential.* Write blocks=Sequential\("),
        ({"blocks": SelfVerify(2)}, r"got blocks=SelfVerify.* Write verifier=SelfVerify\("),
        ({"blocks": "Sequential(4)"}, r"must be instances, .* got blocks='Sequential\(4\)'\.$"),
        ({"blocks": Sequential}, r"must be instances, .* got blocks=<class .*Sequential'>\.$"),
        ({"cache": NoCache()}, r"given as sampler, verifier, blocks, got cache=NoCache\(\)\.$"),
        ({"same_as": Sequential(4)}, "same_as must be a CachePolicy such as .*, got Sequential"),
    ],
)  # fmt: skip
def test_other_plugins_under_a_wrong_name_are_refused(
    plugins: dict[str, Any], message: str
) -> None:
    """A second plug-in of the kind was left out without a word."""
    with pytest.raises(ValueError, match=message):
        check_laws(DualCache(), **plugins)

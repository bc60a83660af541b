"""Plug-ins from text, of each kind in the same way."""

import pytest
from plugins_under_test import CACHES, INSTANCES

from dllm_decode import CachePolicy, Verifier
from dllm_decode.blocks import AdaptiveBlocks, BlockSchedule, MultiBlock, SlidingWindow
from dllm_decode.settings.plugins import KINDS, canonical_plugin, parse
from dllm_decode.verify import S2D2, AnySubsetVerify, MinimumSpan, SelfVerify
from samplers import Sampler


def test_every_plug_in_is_read_from_its_repr() -> None:
    assert [parse(repr(sampler), Sampler) for sampler in INSTANCES] == [*INSTANCES]
    assert [parse(repr(cache), CachePolicy) for cache in CACHES] == [*CACHES]
    for verifier in (SelfVerify(3), AnySubsetVerify(7), S2D2(router=MinimumSpan(4))):
        assert parse(repr(verifier), Verifier) == verifier
    several = MultiBlock(4, 0.5, 0.25, max_open=2, order="entropy", forces="every")
    for schedule in (
        AdaptiveBlocks((7, 14), 0.3, 5, 0.1),
        several,
        SlidingWindow(4, 8, "block", 8),
    ):
        assert parse(repr(schedule), BlockSchedule) == schedule


def test_a_target_is_loaded_only_to_decode() -> None:
    expression = "ARVerify(CausalTarget('mini-ar'))"
    assert canonical_plugin(expression, "verifier").startswith(
        "ARVerify(target=CausalTarget('mini-ar'"
    )
    with pytest.raises(ValueError, match=r"cannot be loaded here, got CausalTarget\('mini-ar'\)"):
        parse(expression, Verifier)


@pytest.mark.parametrize("part", KINDS)
def test_a_plug_in_of_another_kind_is_refused(part: str) -> None:
    other = "DualCache()" if part != "cache" else "SelfVerify()"
    with pytest.raises(ValueError, match="is not known here"):
        canonical_plugin(other, part)
    with pytest.raises(ValueError, match="must be named by a card"):
        canonical_plugin("@no_card.json", part)

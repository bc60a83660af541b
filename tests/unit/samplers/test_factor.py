import math

import pytest
import torch
from plugins_under_test import committed, pinned, with_confidences

from samplers import Factor
from samplers.factor import Variant

VARIANTS: tuple[Variant, ...] = ("paper", "inclusive", "official")


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_mask_is_always_committed_and_none_never(variant: Variant) -> None:
    sampler = Factor(1.0, variant)
    assert committed(sampler, with_confidences([0.1])) == [[0]]
    assert committed(sampler, with_confidences([0.9, 0.9], committed=[0, 1])) == [[]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_are_committed_when_all_pass(variant: Variant) -> None:
    """A public implementation commits all but one then."""
    view = with_confidences([0.99, 0.999, 0.98, 0.995])
    assert committed(Factor(1.0, variant), view) == [[0, 1, 2, 3]]


def test_only_the_official_variant_commits_the_last_ranked_failure() -> None:
    view = with_confidences([0.2, 0.99, 0.95, 0.9], [0.9, 0.99, 0.2, 0.1])
    assert committed(Factor(1.0), view) == [[1, 2, 3], [0, 1]]
    assert committed(Factor(1.0, "official"), view) == [[0, 1, 2, 3], [0, 1]]


def test_of_two_masks_the_official_variant_always_commits_both() -> None:
    view = with_confidences([0.1, 0.05])
    assert committed(Factor(1.0), view) == [[0]]
    assert committed(Factor(1.0, "official"), view) == [[0, 1]]


def test_factor_zero_is_one_token_and_infinity_a_block() -> None:
    view = with_confidences([0.3, 0.99, 0.5])
    assert committed(Factor(0.0), view) == [[1]]
    assert committed(Factor(math.inf), view) == [[0, 1, 2]]


def test_factor_zero_is_one_token_even_when_all_are_certain() -> None:
    view = pinned(with_confidences([0.5] * 3), confidence=[[1.0, 1.0, 1.0]])
    assert committed(Factor(0.0), view) == [[0]]


def test_holes_in_the_block_do_not_count() -> None:
    view = with_confidences([0.99, 1.0, 0.95, 1.0, 0.82], committed=[1, 3])
    assert committed(Factor(0.75), view) == [[0, 2, 4]]


def test_the_count_is_that_of_a_plain_scan() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = (1.0 - 0.4 * torch.rand(50, 9, generator=generator) ** 2).tolist()
    for row, got in zip(rows, committed(Factor(0.8), with_confidences(*rows)), strict=True):
        ordered, n = sorted(row, reverse=True), 0
        while n < 9 and (n + 2) * (1.0 - ordered[n]) < 0.8:
            n += 1
        assert len(got) == max(n, 1)

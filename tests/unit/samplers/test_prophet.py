"""Prophet: when a row's answer counts as decided, where it is, and what is filled."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from torch import Tensor
from toys import HashModel

from dllm_decode import DecodeConfig, ForwardInputs, StepEvent, decode, new_decoder
from samplers import CreditDecoding, FixedSchedule, LocalLeap, Prophet, View

MASK_ID = 11


def view_of(
    tokens: Sequence[Sequence[int]],
    gaps: Sequence[Sequence[float]],
    *,
    block_length: int = 2,
    start: int = 0,
    gen_length: int = 6,
    committed: int | None = None,
) -> View:
    """The highest logit of column i is token i, above all others by its gap."""
    ids = torch.tensor(tokens)
    logits = torch.zeros(*ids.shape, 12, dtype=torch.float64)
    columns = torch.arange(ids.shape[1])
    logits[:, columns, columns] = torch.tensor(gaps, dtype=torch.float64)
    logits[..., MASK_ID] = -torch.inf
    masked = ids == MASK_ID
    in_block = torch.zeros_like(masked)
    in_block[:, :block_length] = True
    return view_with(
        logits, tokens=ids, masked=masked, eligible=masked & in_block, start=start,
        gen_length=gen_length, block_length=block_length,
        committed=None if committed is None else torch.full((len(ids),), committed),
    )  # fmt: skip


def exits(sampler: Prophet, view: View) -> list[bool]:
    """Rows in which all masks in view are committed, some of them behind the block."""
    decision, _ = sampler.step(view, sampler.init(view))
    commit = decision.commit
    assert not (commit & ~view.masked).any()
    return [bool(row) for row in (commit == view.masked).all(-1)]


@pytest.mark.parametrize(
    ("progress", "threshold"), [(0.32, 7.5), (0.33, 5.0), (0.66, 5.0), (0.67, 2.5)]
)
def test_the_threshold_falls_with_progress_and_is_reached_at_equality(
    progress: float, threshold: float
) -> None:
    sampler = Prophet(answer_start=2, answer_length=2)
    for gap, decided in [(threshold, True), (threshold - 0.125, False)]:
        view = view_of([[MASK_ID] * 6], [[gap] * 6], gen_length=100, committed=int(100 * progress))
        assert exits(sampler, view) == [decided]


def test_an_answer_without_masks_or_in_finished_blocks_is_decided() -> None:
    full = view_of([[MASK_ID, MASK_ID, 2, 3, MASK_ID, MASK_ID]], [[0.0] * 6])
    assert exits(Prophet(answer_start=2, answer_length=2), full) == [True]
    assert exits(Prophet(answer_start=2, answer_length=2, gap="all"), full) == [False]
    later = view_of([[MASK_ID] * 4], [[0.0] * 4], start=2)
    assert exits(Prophet(answer_start=0, answer_length=2), later) == [True]
    assert exits(Prophet(answer_start=0, answer_length=3), later) == [False]


@pytest.mark.parametrize(
    ("tokens", "decided"),
    [
        ([8, 9, MASK_ID, MASK_ID, MASK_ID, MASK_ID], True),
        ([MASK_ID, 8, 9, MASK_ID, MASK_ID, MASK_ID], False),  # behind it only small gaps
        ([8, MASK_ID, 9, MASK_ID, MASK_ID, MASK_ID], False),  # not adjacent
        ([MASK_ID, MASK_ID, MASK_ID, MASK_ID, 8, 9], False),  # nothing behind it
        ([8, 9, MASK_ID, MASK_ID, 8, 9], True),  # the first one counts
    ],
)
def test_the_answer_is_looked_for_behind_the_marker(tokens: list[int], decided: bool) -> None:
    sampler = Prophet(marker=(8, 9), answer_length=1)
    view = view_of([tokens], [[0.0, 0.0, 9.0, 0.0, 0.0, 0.0]], block_length=6)
    assert exits(sampler, view) == [decided]


def test_a_marker_in_an_earlier_block_is_seen() -> None:
    sampler = Prophet(FixedSchedule(4), (0.0,), (), marker=(4, 4), answer_length=2)
    assert sampler.scope == "answer"

    class Four(HashModel):
        def predict(self, inputs: ForwardInputs) -> Tensor:
            logits = super().predict(inputs)
            logits[..., 4] += 100.0
            return logits

    rounds: list[StepEvent] = []
    out = decode(Four(), [[1]], sampler, gen_length=12, block_length=4, observers=[rounds.append])
    # Two tokens spell the marker within the first block; then everything is filled at once.
    assert out.nfe.item() <= 4
    assert int(rounds[-1].before.masked.sum()) > 4


@pytest.mark.parametrize("answer", [{"marker": (1, 2)}, {"gap": "all"}, {"answer_start": 8}])
def test_a_threshold_that_is_never_reached_leaves_the_base_alone(answer: dict[str, Any]) -> None:
    base = CreditDecoding(LocalLeap(0.3, 0.2))
    never = Prophet(base, (1e9,), (), answer_length=4, **answer)
    plain, wrapped = (
        decode(
            HashModel(peak=12.0), [[1, 2], [3], [4, 5, 6]], sampler, gen_length=12, block_length=4,
            stop_at_eos=False,
        )
        for sampler in (base, never)
    )  # fmt: skip
    assert torch.equal(wrapped.tokens, plain.tokens)
    assert torch.equal(wrapped.nfe, plain.nfe)


def test_an_answer_outside_the_generation_or_that_of_a_request_is_refused() -> None:
    sampler = CreditDecoding(Prophet(answer_start=4, answer_length=2))
    decoder = new_decoder(HashModel(), sampler, config=DecodeConfig(gen_length=8, block_length=4))
    assert decoder.request([1], 0, gen_length=6).config.gen_length == 6
    with pytest.raises(ValueError, match="within gen_length=5 tokens, got positions 4 to 5"):
        decoder.request([1], 0, gen_length=5)
    with pytest.raises(ValueError, match="within gen_length=5 tokens, got positions 4 to 5"):
        new_decoder(HashModel(), sampler, config=DecodeConfig(gen_length=5))


def test_only_the_answer_is_averaged_whatever_the_window_shows_beside_it() -> None:
    gaps = [[0.0, 6.0, 6.0, 0.0, 0.0]]
    for sampler in (Prophet(gap="all"), Prophet()):
        # A prompt token, two tokens of the answer, and masks that fill up its last block.
        view = view_of([[7, MASK_ID, 2, MASK_ID, MASK_ID]], gaps, start=-1, gen_length=2)
        assert exits(sampler, view) == [True]


def test_a_marker_in_the_prompt_is_none() -> None:
    sampler = Prophet(marker=(8,), answer_length=1)
    tokens, gaps = [[8, MASK_ID, MASK_ID]], [[0.0, 9.0, 9.0]]
    assert exits(sampler, view_of(tokens, gaps, start=0)) == [True]
    assert exits(sampler, view_of(tokens, gaps, start=-1)) == [False]

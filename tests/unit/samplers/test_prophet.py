"""Prophet: when a row's answer counts as decided, where it is, and what is filled."""

from collections.abc import Sequence

import pytest
import torch
from plugins_under_test import view_with
from torch import Tensor
from toys import HashModel

from dllm_decode import DecodeConfig, DecodeOutput, ForwardInputs, StepEvent, decode, new_decoder
from samplers import (
    ConfidenceThreshold,
    CreditDecoding,
    FixedSchedule,
    LocalLeap,
    Prophet,
    Sampler,
    View,
)

MASK_ID = 11
NEVER = (1e9,)
ALWAYS = (0.0,)


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
    ("progress", "threshold"),
    [(0.0, 7.5), (0.32, 7.5), (0.33, 5.0), (0.66, 5.0), (0.67, 2.5), (1.0, 2.5)],
)
def test_the_threshold_falls_with_progress_and_is_reached_at_equality(
    progress: float, threshold: float
) -> None:
    sampler = Prophet(answer_start=2, answer_length=2)
    for gap, decided in [(threshold, True), (threshold - 0.125, False)]:
        view = view_of([[MASK_ID] * 6], [[gap] * 6], gen_length=100, committed=int(100 * progress))
        assert exits(sampler, view) == [decided]


def test_with_a_known_number_of_steps_progress_counts_them_from_one() -> None:
    sampler = Prophet(FixedSchedule(2), (6.0, 3.0), (0.5,), answer_start=4, answer_length=2,
                      num_steps=6)  # fmt: skip
    # Blocks of 2 positions and 2 steps: the third step of the decode is at progress 3/6.
    state = sampler.init(view_of([[MASK_ID] * 6], [[4.0] * 6]))
    decided = []
    for start in (0, 2):
        view = view_of([[MASK_ID] * (6 - start)], [[4.0] * (6 - start)], start=start)
        state = sampler.init(view)
        for _ in range(2):
            decision, state = sampler.step(view, state)
            decided.append(bool(decision.commit.all()))
    assert decided == [False, False, True, True]


def test_only_masked_positions_of_the_answer_are_averaged_unless_asked() -> None:
    tokens = [[MASK_ID, MASK_ID, 2, MASK_ID, MASK_ID, MASK_ID]]
    view = view_of(tokens, [[0.0, 0.0, 20.0, 6.0, 0.0, 0.0]])
    answer = {"answer_start": 2, "answer_length": 2}
    assert exits(Prophet(**answer), view) == [False]  # type: ignore[arg-type]
    assert exits(Prophet(**answer, gap="all"), view) == [True]  # type: ignore[arg-type]


def test_an_answer_without_masks_is_decided() -> None:
    view = view_of([[MASK_ID, MASK_ID, 2, 3, MASK_ID, MASK_ID]], [[0.0] * 6])
    assert exits(Prophet(answer_start=2, answer_length=2), view) == [True]
    assert exits(Prophet(answer_start=2, answer_length=2, gap="all"), view) == [False]


def test_an_answer_in_finished_blocks_is_decided() -> None:
    view = view_of([[MASK_ID] * 4], [[0.0] * 4], start=2)
    assert exits(Prophet(answer_start=0, answer_length=2), view) == [True]
    assert exits(Prophet(answer_start=0, answer_length=3), view) == [False]


def test_a_decided_row_fills_every_block_with_its_proposals_and_others_go_on() -> None:
    sampler = Prophet(ConfidenceThreshold(0.5), answer_start=4, answer_length=2)
    gaps = [[9.0, 0.1, 0.1, 0.1, 8.0, 8.0], [9.0, 0.1, 0.1, 0.1, 1.0, 8.0]]
    view = view_of([[MASK_ID] * 6, [MASK_ID] * 6], gaps)
    decision, _ = sampler.step(view, sampler.init(view))
    assert decision.commit.tolist() == [[True] * 6, [True] + [False] * 5]
    assert decision.tokens is not None
    assert decision.tokens[0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("tokens", "decided"),
    [
        ([8, 9, MASK_ID, MASK_ID, MASK_ID, MASK_ID], True),
        ([MASK_ID, 8, 9, MASK_ID, MASK_ID, MASK_ID], False),  # behind it only small gaps
        ([8, MASK_ID, 9, MASK_ID, MASK_ID, MASK_ID], False),  # not adjacent
        ([MASK_ID, MASK_ID, MASK_ID, MASK_ID, 8, 9], False),  # nothing behind it
        ([MASK_ID, MASK_ID, MASK_ID, MASK_ID, MASK_ID, 8], False),
        ([8, 9, MASK_ID, MASK_ID, 8, 9], True),  # the first one counts
    ],
)
def test_the_answer_is_looked_for_behind_the_marker(tokens: list[int], decided: bool) -> None:
    sampler = Prophet(marker=(8, 9), answer_length=1)
    view = view_of([tokens], [[0.0, 0.0, 9.0, 0.0, 0.0, 0.0]], block_length=6)
    assert exits(sampler, view) == [decided]


def test_a_marker_in_an_earlier_block_is_seen() -> None:
    sampler = Prophet(FixedSchedule(4), ALWAYS, (), marker=(4, 4), answer_length=2)
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


def run(sampler: Sampler, **options: object) -> tuple[DecodeOutput, list[StepEvent]]:
    rounds: list[StepEvent] = []
    settings = {"gen_length": 12, "block_length": 4, "stop_at_eos": False, **options}
    model = HashModel(peak=12.0)
    out = decode(model, [[1, 2], [3], [4, 5, 6]], sampler, observers=[rounds.append], **settings)  # type: ignore[arg-type]
    return out, rounds


def test_a_threshold_that_is_never_reached_leaves_the_base_alone() -> None:
    base = LocalLeap(0.3, 0.2)
    plain, _ = run(base)
    for answer in ({"answer_start": 8}, {"marker": (1, 2)}, {"gap": "all"}):
        wrapped, _ = run(Prophet(base, NEVER, (), answer_length=4, **answer))  # type: ignore[arg-type]
        assert torch.equal(wrapped.tokens, plain.tokens)
        assert torch.equal(wrapped.nfe, plain.nfe)


def test_rows_that_stop_early_save_forwards_and_end_without_masks() -> None:
    out, _ = run(Prophet(FixedSchedule(4), (4.0,), (), answer_start=8, answer_length=2))
    assert min(out.nfe.tolist()) < 12, "no row stopped early"
    assert len(set(out.nfe.tolist())) > 1, "all rows stopped together"
    assert not (out.tokens == 23).any()


def test_given_tokens_are_not_touched_when_a_row_is_filled() -> None:
    template = [23, 7, 23, 23, 23, 23, 8, 9, 23, 23, 23, 23]
    sampler = Prophet(FixedSchedule(4), ALWAYS, (), answer_start=8, answer_length=4)
    out, _ = run(sampler, templates=[template] * 3)
    assert out.nfe.tolist() == [1, 1, 1]
    assert out.tokens[:, [1, 6, 7]].tolist() == [[7, 8, 9]] * 3


def test_an_answer_outside_the_generation_is_refused_before_any_forward() -> None:
    class Silent(HashModel):
        def predict(self, inputs: ForwardInputs) -> Tensor:
            raise AssertionError("a forward was run")

    sampler = CreditDecoding(Prophet(answer_start=10, answer_length=3))
    with pytest.raises(ValueError, match="within gen_length=12 tokens, got positions 10 to 12"):
        decode(Silent(), [[1]], sampler, gen_length=12, block_length=4)


def test_a_request_whose_own_answer_is_too_short_is_refused() -> None:
    sampler = Prophet(ConfidenceThreshold(), answer_start=4, answer_length=2)
    decoder = new_decoder(HashModel(), sampler, config=DecodeConfig(gen_length=8, block_length=4))
    assert decoder.request([1], 0, gen_length=6).config.gen_length == 6
    with pytest.raises(ValueError, match="within gen_length=5 tokens, got positions 4 to 5"):
        decoder.request([1], 0, gen_length=5)


def test_credit_inside_prophet_is_the_same_as_without_the_wider_view() -> None:
    plain, _ = run(CreditDecoding(ConfidenceThreshold(0.3)))
    wrapped, _ = run(Prophet(CreditDecoding(ConfidenceThreshold(0.3)), NEVER, ()))
    outside, _ = run(CreditDecoding(Prophet(ConfidenceThreshold(0.3), NEVER, ())))
    assert torch.equal(plain.tokens, wrapped.tokens)
    assert torch.equal(plain.tokens, outside.tokens)
    assert torch.equal(plain.nfe, outside.nfe)


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

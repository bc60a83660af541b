"""Prophet: when a row's answer counts as decided, where it is, and what is filled."""

from typing import Any

import pytest
import torch
from plugins_under_test import with_gaps
from torch import Tensor
from toys import HashModel

from dllm_decode import DecodeConfig, ForwardInputs, StepEvent, decode, new_decoder
from samplers import CreditDecoding, FixedSchedule, LocalLeap, Prophet, View, parse

# [MASK], and a row of masks.
M = 11
OPEN = [M] * 6


def is_filled(sampler: Prophet, view: View) -> bool:
    """Returns whether all masks in view are committed, also those after the block."""
    decision, _ = sampler.step(view, sampler.init(view))
    assert not (decision.commit & ~view.masked).any()
    return torch.equal(decision.commit, view.masked)


@pytest.mark.parametrize(
    ("progress", "threshold"), [(0.32, 7.5), (0.33, 5.0), (0.66, 5.0), (0.67, 2.5)]
)
def test_the_threshold_falls_with_progress_and_is_reached_at_equality(
    progress: float, threshold: float
) -> None:
    sampler = Prophet(answer_start=2, answer_length=2)
    for gap, decided in [(threshold, True), (threshold - 0.125, False)]:
        view = with_gaps(OPEN, [gap] * 6, gen_length=100, committed=int(100 * progress))
        assert is_filled(sampler, view) is decided


THIRD = [0.0, 0.0, 9.0, 0.0, 0.0, 0.0]
# A prompt token, two tokens of the answer, and masks that fill up its last block.
FILLED_UP = with_gaps([7, M, 2, M, M], [0.0, 6.0, 6.0, 0.0, 0.0], start=-1, gen_length=2)
# The rule, the view, and whether the answer counts as decided.
CASES: list[tuple[str, View, bool]] = [
    # No mask is left in the answer.
    ("answer_start=2, answer_length=2", with_gaps([M, M, 2, 3, M, M], [0.0] * 6), True),
    ("answer_start=2, answer_length=2, gap='all'", with_gaps([M, M, 2, 3, M, M], [0.0] * 6), False),
    # The answer is, or is not, in finished blocks.
    ("answer_start=0, answer_length=2", with_gaps([M] * 4, [0.0] * 4, start=2), True),
    ("answer_start=0, answer_length=3", with_gaps([M] * 4, [0.0] * 4, start=2), False),
    # The first marker counts. Not decided: a small gap after the marker, a split or a last marker.
    *(("marker=(8, 9), answer_length=1", with_gaps(tokens, THIRD, block_length=6), decided)
      for tokens, decided in (([8, 9, M, M, M, M], True), ([8, 9, M, M, 8, 9], True),
                              ([M, 8, 9, M, M, M], False), ([8, M, 9, M, M, M], False),
                              ([M, M, M, M, 8, 9], False))),
    # A marker in the prompt is none.
    ("marker=(8,), answer_length=1", with_gaps([8, M, M], [0.0, 9.0, 9.0]), True),
    ("marker=(8,), answer_length=1", with_gaps([8, M, M], [0.0, 9.0, 9.0], start=-1), False),
    # Only the answer is averaged.
    ("answer_start=0, gap='all'", FILLED_UP, True),
    ("answer_start=0", FILLED_UP, True),
    # A most likely or a committed EOS ends the answer after a marker. An EOS alone is no answer.
    *(("marker=(8,)", with_gaps([8, *tokens], [0.0, 9.0, second, 0.0], eos_ids=eos_ids), decided)
      for tokens, second, eos_ids, decided in (
          ([M, M, M], 1.0, (2,), True), ([M, M, M], 1.0, (), False), ([M, 2, M], 0.0, (2,), True),
          ([M, M, M], 9.0, (1,), False))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "view", "decided"), CASES)
def test_a_row_is_filled_if_its_answer_is_decided(rule: str, view: View, decided: bool) -> None:
    assert is_filled(parse(f"Prophet({rule})"), view) is decided


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


@pytest.mark.parametrize("answer", [
    {"marker": (1, 2), "answer_length": 4},
    {"gap": "all", "answer_start": 0, "answer_length": 12}, {"answer_start": 8, "answer_length": 4}
])  # fmt: skip
def test_a_threshold_that_is_never_reached_leaves_the_base_alone(answer: dict[str, Any]) -> None:
    base = CreditDecoding(LocalLeap(0.3, 0.2))
    never = Prophet(base, (1e9,), (), **answer)
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


class Tokenizer:
    """Reads each digit as a token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(digit) for digit in text]


def test_a_sampler_that_does_not_know_where_the_answer_is_is_refused() -> None:
    with pytest.raises(ValueError, match=r"neither marker nor answer_start.*marker="):
        decode(HashModel(), [[1]], CreditDecoding(Prophet()), gen_length=4)
    tokenizer = Tokenizer()
    sampler = CreditDecoding(Prophet()).with_tokenizer(tokenizer, "34")
    assert sampler == CreditDecoding(Prophet(marker=(3, 4)))
    assert sampler.with_tokenizer(tokenizer, "5") == sampler
    decode(HashModel(), [[1]], sampler, gen_length=4)
    for placed in (Prophet(answer_start=2), FixedSchedule(3)):
        assert placed.with_tokenizer(tokenizer, "5") == placed

"""SchED: when an answer counts as clear and stable, and what is filled."""

import math
from typing import Any

import pytest
import torch
from plugins_under_test import with_gaps
from toys import HashModel

from dllm_decode import StepEvent, decode
from samplers import FixedSchedule, SchED


def fills(sampler: SchED, gaps: list[list[float]], **options: Any) -> list[bool]:
    """Returns for each step whether it fills a row of masks."""
    state, filled = None, []
    for gap in gaps:
        view = with_gaps([11] * 6, gap, **options)
        state = sampler.init(view) if state is None else state
        decision, state = sampler.step(view, state)
        filled.append(bool(decision.commit.all()))
        assert decision.tokens is not None
        if filled[-1]:
            assert torch.equal(decision.tokens, view.most_likely)
    return filled


def weight(fall: str, progress: float) -> float:
    return {
        "cosine": 0.5 + 0.5 * math.cos(math.pi * progress),
        "linear": 1 - progress,
        "exponential": math.exp(-3.0 * progress),
    }[fall]


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("fall", ["cosine", "linear", "exponential"])
def test_the_threshold_falls_with_progress(fall: Any, progress: float) -> None:
    rate: Any = {"rate": 3.0} if fall == "exponential" else {}
    sampler = SchED(FixedSchedule(2), fall, high=6.0, low=2.0, max_changed=1.0, **rate)
    threshold = 2.0 + 4.0 * weight(fall, progress)
    options = {"gen_length": 100, "committed": int(100 * progress)}
    assert fills(sampler, [[threshold + 1e-6] * 6], **options) == [True]
    assert fills(sampler, [[threshold - 1e-6] * 6], **options) == [False]


def test_with_a_known_number_of_steps_progress_counts_them_from_zero() -> None:
    # Blocks of 2 positions and 2 steps. Step 2 of steps 0 to 4 is at progress 0.5.
    sampler = SchED(FixedSchedule(2), "linear", 8.0, 0.0, max_changed=1.0, num_steps=5)
    assert fills(sampler, [[4.0] * 6] * 3, gen_length=10, start=0) == [False, False, True]
    assert fills(sampler, [[4.0] * 6] * 2, gen_length=10, start=2) == [False, True]
    # If there is one step only, the first step is the last one.
    assert fills(SchED(low=2.5, max_changed=1.0, num_steps=1), [[2.5] * 6]) == [True]


def test_a_row_waits_until_its_likeliest_tokens_stay() -> None:
    clear, changed = [9.0] * 6, [9.0] * 4 + [-9.0] * 2
    assert fills(SchED(), [clear, clear]) == [False, True]
    # In the first step every token counts as changed, even token 0, which fills a new state.
    assert fills(SchED(max_changed=0.9), [clear]) == [False]
    # In `changed` two of six positions have another likeliest token.
    assert fills(SchED(low=0.0, high=0.0), [clear, changed, changed]) == [False, False, True]
    assert fills(SchED(low=0.0, high=0.0, max_changed=0.4), [clear, changed]) == [False, True]


def test_only_masks_of_the_own_answer_are_averaged() -> None:
    sampler = SchED(high=5.0, low=5.0, max_changed=1.0)
    assert fills(sampler, [[5.0] * 4 + [0.0] * 2], gen_length=4) == [True]
    assert fills(sampler, [[5.0] * 4 + [0.0] * 2], gen_length=6) == [False]


def test_a_decode_ends_early_and_only_as_the_rule_says() -> None:
    options: Any = {"gen_length": 16, "block_length": 8, "stop_at_eos": False}
    prompts, rounds = [[1], [2], [3]], []

    def count(event: StepEvent) -> None:
        rounds.append(len(event.rows))

    plain = decode(HashModel(), prompts, FixedSchedule(8), **options)
    never = decode(HashModel(), prompts, SchED(FixedSchedule(8), high=99.0, low=99.0), **options)
    assert torch.equal(never.tokens, plain.tokens)
    at_once = SchED(FixedSchedule(8), high=0.0, low=0.0, max_changed=1.0)
    out = decode(HashModel(), prompts, at_once, observers=[count], **options)
    assert (out.forwards, rounds) == (1, [3])
    drawn = decode(HashModel(), prompts, at_once, temperature=5.0, **options)
    assert torch.equal(drawn.tokens, out.tokens)

"""Since when the tokens of a result are the most likely ones."""

import math
from typing import Any

import pytest
from toys import DriftingModel

from dllm_decode import StepEvent, decode
from eval.runs.scoring import LikelySince, result_start
from samplers import ConfidenceThreshold, FixedSchedule, Sampler, Wino

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


class Shown:
    """Records by request and step the most likely token of each masked position in the view."""

    def __init__(self) -> None:
        self.steps: dict[int, list[dict[int, int]]] = {}

    def __call__(self, event: StepEvent) -> None:
        for index, row in enumerate(event.rows):
            tokens = event.after.tokens[index, row.prompt_length : row.answer_end].tolist()
            likely = {p: t for p, t in enumerate(tokens) if t != event.after.mask_id}
            logits = event.view.logits[index]
            for column, position in enumerate(event.view.positions[index].tolist()):
                if event.view.masked[index, column] and position in range(len(tokens)):
                    likely.setdefault(position, int(logits[column].argmax()))
            self.steps.setdefault(row.request.index, []).append(likely)


def first_step(steps: list[dict[int, int]], position: int) -> int:
    """Returns the first step, from 1, since which a position has had the token of the last step."""
    final, first = steps[-1][position], len(steps)
    for number in range(len(steps), 0, -1):
        # A view that does not show the position changes nothing.
        token = steps[number - 1].get(position)
        if token not in (None, final):
            break
        first = first if token is None else number
    return first


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (FixedSchedule(12), {"block_length": 12}),
        (FixedSchedule(2), {"block_length": 4}),
        (ConfidenceThreshold(0.3), {"block_length": 12}),
        (Wino(0.4, 0.3), {"block_length": 12}),
    ],
    ids=repr,
)
def test_a_position_is_decided_once_its_token_stays_the_likeliest(
    sampler: Sampler, options: dict[str, Any]
) -> None:
    since, shown = LikelySince(), Shown()
    out = decode(
        DriftingModel(), PROMPTS, sampler, gen_length=12, observers=[since, shown],
        stop_at_eos=False, **options,
    )  # fmt: skip
    found = set()
    for row, steps in shown.steps.items():
        assert list(steps[-1].values()) != []
        firsts = [first_step(steps, position) for position in range(12)]
        assert [steps[-1][p] for p in range(12)] == out.tokens[row].tolist()
        assert [since.decided(row, [position]) for position in range(12)] == firsts
        assert since.decided(row, range(12)) == max(firsts)
        assert since.decided(row, range(12, 12)) == 0
        found |= {math.ceil(3 * first / len(steps)) for first in firsts}
    assert len(found) > 1


def test_a_result_begins_after_the_first_marker() -> None:
    assert result_start([3, 4, 5, 4, 5, 6], [4, 5]) == 3
    assert result_start([3, 4], [4, 5]) == 0
    assert result_start([3, 4], []) == 0
    assert result_start([3, 4], [4]) == 2

"""Reliability diagrams against counts by hand."""

from typing import Any

import eval_runs
import pytest
import torch

from dllm_decode import StepEvent, decode
from eval.runs.answers import NUM_BINS, Proposals
from eval.studies.reliability import reliability_of_proposals
from samplers import ConfidenceThreshold, Wino


def record(confidences: list[float | None], revisions: list[Any]) -> Any:
    return {
        "error": None, "length": len(confidences), "tokens": list(range(5, 5 + len(confidences))),
        "trace": {"confidences": confidences, "revisions": revisions},
    }  # fmt: skip


def proposed(**told: list[float]) -> Any:
    """Makes a record with some proposals, by bin: `b18=[2, 1, 1.8]`."""
    bins: list[tuple[float, ...]] = [(0, 0, 0.0)] * NUM_BINS
    for name, numbers in told.items():
        bins[int(name[1:])] = tuple(numbers)
    return record([], []) | {"example": "a", "trace": {"proposals": bins}}


def test_proposals_of_all_records_share_the_bins() -> None:
    """A threshold commits the proposals of its bin and of the bins above."""
    diagram = reliability_of_proposals([
        proposed(b18=[2, 1, 1.82], b2=[1, 0, 0.12]), proposed(b18=[2, 2, 1.88], b19=[5, 5, 5.0]),
        record([0.5], []),
    ])  # fmt: skip
    assert [(part.low, part.num_commits, part.agreement, *part[-2:]) for part in diagram.bins] == [
        (0.1, 1, 0.0, 1.0, 0.8), (0.9, 4, 0.75, 0.9, 8 / 9), (0.95, 5, 1.0, 0.5, 1.0),
    ]  # fmt: skip
    assert diagram.bins[1].confidence == pytest.approx(0.925)
    # |0.12 - 0| + |3.7 - 3| + |5 - 5|, over ten.
    assert diagram.calibration_error == pytest.approx(0.082)


def test_damaged_proposals_are_named() -> None:
    trace = {"proposals": [(1, 1, 0.9)]}
    with pytest.raises(ValueError, match="must be 20 bins of 3 numbers, got others for a"):
        reliability_of_proposals([record([], []) | {"example": "a", "trace": trace}])
    with pytest.raises(ValueError, match="records with proposals, got none"):
        reliability_of_proposals([record([0.95], [])])


@pytest.mark.parametrize("sampler", [ConfidenceThreshold(0.2), Wino()], ids=repr)
def test_proposals_are_those_of_every_state_up_to_the_end_of_the_answer(sampler: Any) -> None:
    """Against a count position by position; revocable samplers see a position again."""
    seen: list[tuple[int, int, int, float]] = []

    def note(event: StepEvent) -> None:
        for row, request in enumerate(event.requests.tolist()):
            for column in event.view.eligible[row].nonzero().flatten().tolist():
                position = int(event.view.positions[row, column])
                token = int(event.view.proposal[row, column])
                seen.append((request, position, token, float(event.view.confidence[row, column])))

    proposals = Proposals()
    out = decode(
        eval_runs.model(), [[5, 6, 7], [9]], sampler, gen_length=16, block_length=8,
        observers=[proposals, note],
    )  # fmt: skip
    lengths = out.lengths()
    assert int(lengths.min()) < 16, "no answer ended early"
    counts = torch.tensor(proposals.of(out.tokens, lengths))
    expected = torch.zeros(2, NUM_BINS, 3)
    for request, position, token, confidence in seen:
        if position < lengths[request]:
            sums = expected[request, min(int(confidence * NUM_BINS), NUM_BINS - 1)]
            agrees = token == int(out.tokens[request, position])
            sums += torch.tensor([1.0, float(agrees), confidence])
    assert counts == pytest.approx(expected, abs=1e-3)
    num_proposals, num_agreeing = counts[..., 0].sum(), counts[..., 1].sum()
    assert num_proposals > num_agreeing > 0

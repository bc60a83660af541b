"""Observers of `decode_many` see each prompt as they see it in one batch of all prompts."""

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_models import BIDIRECTIONAL, BLOCK_CAUSAL, FAMILIES, TINY_PROMPTS, ending, templates_for

from dllm_decode import (
    DualCache,
    FreeCache,
    Gains,
    NoCache,
    NoVerifier,
    SelfVerify,
    StepEvent,
    Trace,
    Verifier,
    decode,
    decode_many,
)
from dllm_decode.text.terminal import stream_to_terminal
from eval.runs.reporter import Reporter
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

OPTIONS: Any = {"gen_length": 20, "block_length": 8}


def assert_same_traces(one: Trace, other: Trace) -> None:
    assert one.num_steps == other.num_steps
    assert one.revisions.keys() == other.revisions.keys()
    for request, revisions in one.revisions.items():
        for ours, theirs in zip(revisions, other.revisions[request], strict=True):
            assert ours._replace(confidence=0.0) == theirs._replace(confidence=0.0)
            assert ours.confidence == pytest.approx(theirs.confidence, nan_ok=True)
    assert one.steps.keys() == other.steps.keys()
    for request, steps in one.steps.items():
        assert torch.equal(steps, other.steps[request]), request
        torch.testing.assert_close(
            one.confidences[request], other.confidences[request], equal_nan=True
        )


WAYS = [
    (1, ConfidenceThreshold(0.4), NoVerifier(), False), (3, FixedSchedule(4), NoVerifier(), True),
    (3, FixedSchedule(4), SelfVerify(3), False), (3, FixedSchedule(4), SelfVerify(3, "tree"), True),
]  # fmt: skip


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(("num_rows", "sampler", "verifier", "given"), WAYS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_traces_and_gains_are_those_of_one_batch(
    family: str, num_rows: int, sampler: Sampler, verifier: Verifier, given: bool
) -> None:
    model = ending(family)
    templates = templates_for(model.mask_id, model.eos_ids[0]) if given else []
    cache = FreeCache() if model.causal_block_length else DualCache()
    options = OPTIONS | {"cache": cache, "verifier": verifier, "templates": templates}
    batch_trace, batch_gains = Trace(), Gains()
    out = decode(model, TINY_PROMPTS, sampler, observers=[batch_trace, batch_gains], **options)
    trace, gains, events = Trace(), Gains(), list[StepEvent]()
    single = list(
        decode_many(
            model, TINY_PROMPTS, sampler, num_rows=num_rows,
            observers=[trace, gains, events.append], **options,
        )
    )  # fmt: skip
    assert torch.equal(out.tokens, torch.cat([output.tokens for output in single]))
    assert_same_traces(batch_trace, trace)
    ours, theirs = gains.by_row(), batch_gains.by_row()
    assert {r: g.committed for r, g in ours.items()} == {r: g.committed for r, g in theirs.items()}
    if isinstance(verifier, NoVerifier):
        assert ours == theirs
    for request, gain in ours.items():
        assert len(gain.per_forward) <= single[request].forwards
    together = [event.request_indices.tolist() for event in events]
    assert len({request for requests in together for request in requests}) > num_rows
    assert max(map(len, together)) == num_rows


def test_a_trace_begins_with_the_answer_where_a_prompt_fills_part_of_a_block() -> None:
    """The trace began with the block, so that a prompt's tail took the first places."""
    model, trace = ending(BLOCK_CAUSAL), Trace()
    prompts = [[17, 40, 41, 300, 5, 77], [99]]
    out = decode(model, prompts, FixedSchedule(4), observers=[trace], stop_at_eos=False, **OPTIONS)
    assert model.causal_block_length == 4
    for row in range(2):
        assert trace.steps[row].shape == out.tokens[row].shape
        assert (trace.steps[row] >= 0).all()


class Words:
    def decode(self, token_ids: list[int]) -> str:
        return " ".join(f"w{token}" for token in token_ids)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("number", [0, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_of_one_prompt_is_streamed_whole(family: str, number: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=400)
    with stream_to_terminal(Words(), row=number, console=console) as watch:
        single = list(
            decode_many(
                ending(family), TINY_PROMPTS, FixedSchedule(4), num_rows=2,
                observers=[watch], **OPTIONS,
            )
        )  # fmt: skip
    output = single[number]
    assert stream.getvalue().strip() == Words().decode(output.answers()[0])


def test_a_bar_moves_while_rows_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.runs.reporter._LOOK_EVERY_S", 0.0)
    bar, shares = Reporter(Console(file=io.StringIO(), force_terminal=True)), []
    with bar:
        bar.begin("many", len(TINY_PROMPTS), [])

        def look(event: StepEvent) -> None:
            bar(event)
            shares.append(bar._bar._bar.tasks[-1].completed)

        list(
            decode_many(
                ending(BIDIRECTIONAL), TINY_PROMPTS, FixedSchedule(4), num_rows=2, cache=NoCache(),
                observers=[look], **OPTIONS,
            )
        )  # fmt: skip
    assert min(shares) > 0.0
    # Two rows; columns before the open block count, too.
    assert 1.0 < max(shares) <= 2.0

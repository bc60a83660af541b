"""A trace shows a decision that edits; the independent loop checks the rule."""

from tiny_models import TINY_PROMPTS, tiny

from dllm_decode import StepEvent, Trace, decode
from samplers import JointThreshold


def test_a_trace_shows_an_edit_as_a_revision() -> None:
    trace, num_edits = Trace(), list[int]()

    def count(event: StepEvent) -> None:
        before, after = event.before, event.after
        edited = ~before.masked & (before.tokens != after.tokens)
        assert not (edited & (before.given | after.masked)).any()
        num_edits.append(int(edited.sum()))

    out = decode(
        tiny("llada"), TINY_PROMPTS[:3], JointThreshold(0.5, 0.0, 5), gen_length=14, block_length=8,
        stop_at_eos=False, observers=[trace, count],
    )  # fmt: skip
    assert sum(map(len, trace.revisions.values())) == sum(num_edits) > 0
    for row in range(3):
        assert (trace.steps[row] >= 0).all()
        assert trace.num_steps[row] == out.nfe[row]

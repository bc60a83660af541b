from dataclasses import dataclass
from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from toys import HashModel

from dllm_decode import Gain, Gains, StepEvent, StopRule, Trace, decode
from samplers import Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact


def second_thoughts(self: Any, view: View, state: torch.Tensor) -> tuple[Decision, torch.Tensor]:
    """Commits everything, takes back position 1 of the block, and commits it again."""
    first = (state == 0)[:, None]
    places = torch.arange(view.tokens.shape[1])
    commit = torch.where(first, view.eligible & (places < 3), view.eligible & (places == 3))
    commit = torch.where((state > 1)[:, None], view.eligible, commit)
    return Decision(commit, remask=(state == 1)[:, None] & (places == 1)), state + 1


SECOND_THOUGHTS = plugin(
    Sampler, step=second_thoughts, gives=frozenset(), needs=frozenset({Fact.LOGITS_OF_COMMITTED}),
    max_steps=lambda self, num_masks: num_masks + 2,
    init=lambda self, view: torch.zeros(len(view.tokens), dtype=torch.long),
)  # fmt: skip


def test_a_revision_is_kept_with_its_history() -> None:
    trace, gains, seen = Trace(), Gains(), []

    def keep(event: StepEvent) -> None:
        seen.append(event.after.answer_tokens())

    out = decode(
        HashModel(), [[1, 2], [3]], SECOND_THOUGHTS, gen_length=4, block_length=4,
        stop_at_eos=False, observers=[trace, gains, keep],
    )  # fmt: skip
    assert len(seen) == 3
    for row in (0, 1):
        assert trace.steps[row].tolist() == [0, 2, 0, 1]
        assert trace.num_steps[row] == 3
        (revision,) = trace.revisions[row]
        assert (revision.position, revision.committed, revision.removed) == (1, 0, 1)
        assert revision.token == seen[0][row, 1]
        assert 0.0 < revision.confidence < 1.0
        assert not trace.confidences[row].isnan().any()
    assert (out.tokens[:, 1] == seen[2][:, 1]).all()
    # Three tokens; one, while position 1 is taken back; then position 1 again.
    assert gains.by_row() == dict.fromkeys((0, 1), Gain([3, 1, 1], 4))


@dataclass(frozen=True)
class AfterOne(StopRule):
    """Ends an answer after its first token."""

    def stops(self, tokens: list[int]) -> bool:
        return len(tokens) > 0


def assert_records_agree(model: Any, sampler: Sampler, **options: Any) -> list[list[int]]:
    """Returns the steps of each row, on which trace, gains and the recorded commits agree."""
    trace, gains = Trace(), Gains()
    prompts = [[1, 2], [3], [4, 5, 6]]
    out = decode(
        model, prompts, sampler, gen_length=12, observers=[trace, gains], return_logprobs=True,
        **options,
    )  # fmt: skip
    assert out.commits is not None
    steps = [trace.steps[row].tolist() for row in range(len(prompts))]
    assert steps == out.commits.steps.tolist()
    committed = [sum(step >= 0 for step in row_steps) for row_steps in steps]
    assert [gains.by_row()[row].committed for row in range(len(prompts))] == committed
    return steps


def test_eos_filled_in_after_a_stop_rule_is_no_commit() -> None:
    """The first such EOS counted."""
    steps = assert_records_agree(HashModel(), FixedSchedule(4), block_length=1, stop=AfterOne())
    assert steps == [[0] + [-1] * 11] * 3


@pytest.mark.parametrize("sampler", [FixedSchedule(3), SECOND_THOUGHTS], ids=type)
@pytest.mark.parametrize("stops", [True, False])
def test_eos_written_after_a_committed_one_is_no_commit(sampler: Sampler, stops: bool) -> None:
    """Such an EOS counted in rows that went on, because masks were left before the EOS."""
    model = HashModel(eos_ids=tuple(range(12, 23)))
    all_steps = assert_records_agree(
        model, sampler, block_length=4, truncate_at_eos=True, stop_at_eos=stops
    )
    assert any(-1 in steps for steps in all_steps)


@pytest.mark.parametrize("observer", [Trace, Gains])
def test_an_observer_of_one_decode_refuses_a_second(observer: Any) -> None:
    used = observer()
    options: Any = {"gen_length": 4, "observers": [used]}
    decode(HashModel(), [[1]], FixedSchedule(1), **options)
    with pytest.raises(RuntimeError, match="must serve one decode only, got a second"):
        decode(HashModel(), [[1]], FixedSchedule(1), **options)

"""Wino's thresholds at equality, and the copy that verifies; golden runs hold the rule."""

from dataclasses import replace

import pytest
import torch
from plugins_under_test import pinned, positions, with_confidences
from tiny_models import Counted
from torch import Tensor
from toys import HashModel

from dllm_decode import ForwardInputs, StepEvent, decode
from dllm_decode.models import new_llada
from samplers import ConfidenceThreshold, Sampler, View, Wino
from samplers.wino import Committed


def look(prompts: list[list[int]], sampler: Sampler) -> tuple[View, ForwardInputs]:
    """Returns what the sampler and the model see first."""
    views: list[View] = []
    model = Counted(HashModel())  # type: ignore[arg-type]  # any model is kept
    out = decode(
        model, prompts, sampler, gen_length=8, block_length=4, stop_at_eos=False,
        observers=[lambda event: views.append(event.view)],
    )  # fmt: skip
    asked = sum(torch.tensor([call.tokens.shape[1]] * len(prompts)) for call in model.calls)
    assert len(prompts) > 1 or torch.equal(out.query_positions, asked)
    return views[0], model.calls[0]


def test_both_thresholds_exclude_equality() -> None:
    row = (0.9, 0.9, 0.5, 0.51, 0.75)
    trust = torch.tensor([[0.75, 0.7, 0.0, 0.0, 0.0]], dtype=torch.float64)
    view = replace(with_confidences(row, committed=[0, 1]), leave_one_out=trust)
    state = Committed(torch.zeros(1, 5, dtype=torch.bool), torch.tensor([4]))
    decision, _ = Wino(0.5, 0.75).step(pinned(view, confidence=[row]), state)
    assert positions(decision.commit) == [[3, 4]]
    assert decision.remask is not None
    assert positions(decision.remask) == [[1]]


def test_the_copy_stands_at_the_same_positions_and_hides_only_the_token_it_verifies() -> None:
    _, inputs = look([[5, 6, 7], [8]], Wino())
    length, width = 11, 4
    assert inputs.tokens.shape == (2, length + width)
    assert (inputs.tokens[:, length:] == 23).all()
    assert inputs.positions[:, length:].tolist() == [[3, 4, 5, 6], [1, 2, 3, 4]]
    assert inputs.attend is not None
    assert not inputs.attend[:, :length, length:].any(), "the canvas sees the copy"
    assert inputs.attend[:, length:, length:].all()
    hidden = ~inputs.attend[:, length:, :length]
    for row, prompt in enumerate([3, 1]):
        for copy in range(width):
            # The columns after the row's end are nobody's.
            unseen = [prompt + copy, *range(prompt + 8, length)]
            assert hidden[row, copy].nonzero().squeeze(-1).tolist() == unseen


def test_a_token_does_not_influence_its_own_verification_but_that_of_others() -> None:
    """With one layer; in deeper ones what other columns saw comes through, as in the paper."""
    model = new_llada(
        vocab_size=32, hidden_size=16, num_layers=1, num_heads=2, mlp_hidden_size=32,
        mask_id=30, eos_ids=(31,),
    ).double()  # fmt: skip
    for weight in model.parameters():
        weight.data.mul_(4.0)

    def shadows(token: int) -> Tensor:
        views: list[View] = []

        def watch(event: StepEvent) -> None:
            views.append(event.view)

        template = [[1, token, 3, 30, 30, 30]]
        decode(model, [[5, 6]], Wino(), gen_length=6, block_length=6, templates=template,
               stop_at_eos=False, observers=[watch])  # fmt: skip
        leave_one_out = views[0].leave_one_out
        assert leave_one_out is not None
        return leave_one_out[0]

    before, changed = shadows(2), shadows(7)
    assert before[1] != changed[1], "another token has another probability"
    assert before[0] != changed[0]
    assert before[2] != changed[2]
    # The distribution behind position 1 is the same: probabilities of all tokens sum to one.
    total = sum(shadows(token)[1] for token in range(32) if token != 30)
    assert float(total) == pytest.approx(1.0)


def test_the_canvas_is_predicted_as_if_there_were_no_copy() -> None:
    (with_copy, copied), (without, plain) = (
        look([[5, 6, 7]], sampler) for sampler in (Wino(), ConfidenceThreshold())
    )
    assert copied.tokens.shape[1] == plain.tokens.shape[1] + 4
    assert torch.equal(with_copy.logits, without.logits)

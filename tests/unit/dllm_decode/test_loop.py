import math
from dataclasses import replace

import pytest
import torch
from toys import HashModel

from dllm_decode import (
    ForwardInputs,
    NoCache,
    NoVerifier,
    Trace,
    compatibility,
    decode,
)
from samplers import ConfidenceThreshold, FixedSchedule, Sampler, Wino

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def test_a_row_that_ended_is_no_longer_computed_and_its_tail_is_eos() -> None:
    model = HashModel(eos_ids=tuple(range(0, 22, 4)))
    out = decode(model, PROMPTS, FixedSchedule(4), gen_length=16, block_length=4)
    full = decode(
        model, PROMPTS, FixedSchedule(4), gen_length=16, block_length=4, stop_at_eos=False
    )
    assert (out.nfe < full.nfe).any()
    assert torch.equal(out.lengths(), full.lengths())
    assert out.answers() == full.answers()
    undecided = out.tokens != full.tokens
    assert undecided.any()
    assert set(out.tokens[undecided].tolist()) == {model.eos_ids[0]}
    columns = torch.tensor([16 + len(prompt) for prompt in PROMPTS])
    assert torch.equal(out.query_positions, out.nfe * columns)


def test_lengths_count_up_to_and_including_the_first_eos() -> None:
    model = HashModel()
    out = decode(model, [[1]] * 3, FixedSchedule(4), gen_length=4, block_length=4)
    tokens = torch.tensor([[22, 1, 1, 1], [1, 1, 22, 22], [1, 2, 3, 4]])
    out = replace(out, tokens=tokens, nfe=torch.tensor([2, 2, 4]))
    assert out.lengths().tolist() == [1, 3, 4]
    assert out.answers() == [[], [1, 1], [1, 2, 3, 4]]
    assert out.tokens_per_forward() == 1.0


def test_given_tokens_are_never_changed_and_never_counted_as_steps() -> None:
    model, trace = HashModel(), Trace()
    template = [model.mask_id, 5, model.mask_id, 6, model.mask_id]
    out = decode(
        model, [[1, 2]], FixedSchedule(8), gen_length=6, block_length=6, templates=[template],
        stop_at_eos=False, observers=[trace],
    )  # fmt: skip
    assert out.tokens[0, 1] == 5
    assert out.tokens[0, 3] == 6
    assert out.nfe.tolist() == [4]
    assert trace.steps[0][[1, 3]].tolist() == [-1, -1]
    assert trace.confidences[0].isnan().tolist() == [False, True, False, True, False, False]


def test_a_full_template_costs_nothing() -> None:
    out = decode(
        HashModel(), [[1]], FixedSchedule(2), gen_length=2, block_length=2, templates=[[3, 4]]
    )
    assert out.tokens.tolist() == [[3, 4]]
    assert out.forwards == 0
    assert out.tokens_per_forward() == 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sampler", [FixedSchedule(4), ConfidenceThreshold(0.9), Wino()], ids=repr)
def test_a_logit_that_is_no_number_is_an_error_that_names_the_step(
    sampler: Sampler, value: float
) -> None:
    class Broken(HashModel):
        def predict(self, inputs: ForwardInputs) -> torch.Tensor:
            logits = super().predict(inputs)
            calls.append(inputs)
            if len(calls) == 2:
                logits[-1, 0, 5] = value
            return logits

    calls: list[ForwardInputs] = []

    with pytest.raises(RuntimeError, match=r"hash model must give logits without NaN or inf.* 2"):
        decode(Broken(peak=1.0), [[1], [2, 3]], sampler, gen_length=8, stop_at_eos=False)


def test_plug_ins_of_the_wrong_kind_are_refused_in_one_sentence() -> None:
    right = (HashModel(), FixedSchedule(4), NoCache(), NoVerifier())
    compatibility.require_plugins(*right)
    wrong: tuple[object, ...]
    for place, name in enumerate(("model", "sampler", "cache", "verifier")):
        for value in (None, "text", [[1, 2]], type(right[place]), right[(place + 1) % 4]):
            wrong = (*right[:place], value, *right[place + 1 :])
            with pytest.raises(ValueError, match=rf"^{name} must be .*, got .*\.$"):
                compatibility.require_plugins(*wrong)

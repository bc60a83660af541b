import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from toys import HashModel

from dllm_decode import (
    ForwardInputs,
    NoCache,
    NoVerifier,
    SelfVerify,
    Trace,
    Verifier,
    compatibility,
    decode,
    decode_many,
)
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, State, View, Wino
from samplers.facts import Fact

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


@dataclass(frozen=True)
class Idle(Sampler):
    """Never commits: a sampler that breaks its contract."""

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        return Decision(commit=torch.zeros_like(view.eligible)), state


@dataclass(frozen=True)
class Overreaching(Sampler):
    """Commits everything in sight, [MASK] wherever it can."""

    token: int

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        everywhere = torch.ones_like(view.eligible)
        return Decision(commit=everywhere, tokens=torch.full_like(view.tokens, self.token)), state


@dataclass(frozen=True)
class Greedy(Sampler):
    """Commits everything, and re-masks what it is told to."""

    remask: Literal["all", "prompted"]

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs - {Fact.ONE_STEP_A_FORWARD} | {Fact.LOGITS_OF_COMMITTED}

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset()

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        masked_again = torch.ones_like(view.masked) if self.remask == "all" else ~view.masked
        return Decision(commit=view.eligible, remask=masked_again), state


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (Idle(), r"Idle\(\) must commit at least one eligible position .* in round 1"),
        (Overreaching(7), r"Overreaching\(token=7\) must commit eligible positions only"),
        (Overreaching(23), r"Overreaching\(token=23\) must commit .* in round 1"),
        (Greedy("all"), r"Greedy\(remask='all'\) must re-mask positions only that"),
        (Greedy("prompted"), r"Greedy\(remask='prompted'\) must re-mask positions only that"),
    ],
)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(2)], ids=repr)
def test_a_sampler_that_breaks_its_contract_is_named(
    sampler: Sampler, sentence: str, verifier: Verifier
) -> None:
    model = HashModel()
    with pytest.raises(RuntimeError, match=sentence):
        decode(
            model, [[1], [2, 3]], sampler, templates=[[model.mask_id, 3]] * 2, gen_length=4,
            block_length=4, stop_at_eos=False, verifier=verifier,
        )  # fmt: skip


def test_the_step_is_the_one_in_which_the_contract_broke() -> None:
    @dataclass(frozen=True)
    class Tiring(Sampler):
        """Commits one position a step in rows that have more than two masks left."""

        def step(self, view: View, state: State) -> tuple[Decision, State]:
            first = view.eligible & (view.eligible.cumsum(-1) == 1)
            return Decision(commit=first & (view.masked.sum(-1, keepdim=True) > 2)), state

    with pytest.raises(RuntimeError, match=r"Tiring\(\) must commit .* in round 3"):
        decode(HashModel(), [[1]], Tiring(), gen_length=4, stop_at_eos=False)


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


def test_temperature_zero_ignores_the_seed_and_a_high_one_does_not() -> None:
    def tokens(temperature: float, seed: int) -> list[list[int]]:
        out = decode(
            HashModel(), PROMPTS, FixedSchedule(4), gen_length=8, block_length=4,
            temperature=temperature, seed=seed,
        )  # fmt: skip
        return out.tokens.tolist()  # type: ignore[no-any-return]

    assert tokens(0.0, 0) == tokens(0.0, 1)
    assert tokens(2.0, 0) == tokens(2.0, 0)
    assert tokens(2.0, 0) != tokens(2.0, 1)


@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(2)], ids=repr)
def test_a_block_causal_model_decodes_nothing_behind_the_answer(verifier: Verifier) -> None:
    """Prompt and answer end inside a block of the model's, which is filled up with masks."""
    model, prompt, given = HashModel(causal_block_length=4), [1, 2, 3], [4, 5, 6, 7, 8, 9]
    options: dict[str, Any] = {"gen_length": 6, "block_length": 4, "stop_at_eos": False}
    options["verifier"] = verifier
    whole = decode(model, [prompt], FixedSchedule(4), templates=[given], **options)
    assert whole.forwards == 0
    assert whole.tokens.tolist() == [given]
    last = [*given[:5], model.mask_id]
    out = decode(model, [prompt], ConfidenceThreshold(0.0), templates=[last], **options)
    assert out.forwards == 1
    (many,) = decode_many(model, [prompt], FixedSchedule(4), templates=[given], **options)
    assert many.forwards == 0

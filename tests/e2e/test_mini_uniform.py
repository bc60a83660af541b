"""The embedded uniform-state model does what docs/uniform_state.md says of it."""

from typing import Any

import pytest
from eval_runs import answered

from dllm_decode import FreeCache, generate, load_model
from dllm_decode.cli.main import main
from dllm_decode.models.predictors.diffusion_gemma import DiffusionGemma
from eval.tasks import WordProblems
from samplers import AcceptAndRenoise

SAMPLER = AcceptAndRenoise(num_steps=8)
OPTIONS: Any = {"cache": FreeCache(), "gen_length": 64}


@pytest.fixture(scope="module")
def loaded() -> tuple[DiffusionGemma, Any]:
    model, tokenizer = load_model("mini-uniform")
    assert isinstance(model, DiffusionGemma)
    assert model.block_length == 8
    return model, tokenizer


def test_some_of_a_handful_of_problems_are_answered_right(
    loaded: tuple[DiffusionGemma, Any],
) -> None:
    _, right, forwards = answered(loaded, 12, SAMPLER, **OPTIONS)
    # A guess at random is right in one of a hundred.
    assert right >= 0.6
    assert 6 < forwards < 24


@pytest.mark.slow
def test_accuracy_and_forwards_are_those_of_the_manual(loaded: tuple[DiffusionGemma, Any]) -> None:
    _, right, forwards = answered(loaded, 500, SAMPLER, **OPTIONS)
    assert right == pytest.approx(0.814, abs=0.03)
    assert forwards == pytest.approx(13.0, abs=1.0)


def test_a_model_is_given_the_sampler_that_suits_it(
    loaded: tuple[DiffusionGemma, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    question = WordProblems().examples("test", 1)[0].prompt
    right = generate(*loaded, question, AcceptAndRenoise(), gen_length=8).texts
    assert generate(*loaded, question, gen_length=8).texts == right
    assert main(["generate", "--model", "mini-uniform", "--gen-length", "8", question]) == 0
    assert capsys.readouterr().out.strip() == right[0]

"""The embedded any-subset model answers and fills in, in fewer forwards than tokens."""

from typing import Any

import pytest
from eval_runs import answered

from dllm_decode import AnySubsetVerify, generate, load_model
from dllm_decode.cli.main import main
from dllm_decode.models.predictors.xlnet import XLNet
from samplers import ConfidenceThreshold


@pytest.fixture(scope="module")
def loaded() -> tuple[XLNet, Any]:
    model, tokenizer = load_model("mini-any", dtype="float32")
    assert isinstance(model, XLNet)
    assert (model.mask_id, model.eos_ids) == (1, (0,))
    return model, tokenizer


def verified(
    loaded: tuple[XLNet, Any], num_problems: int, draft_tokens: int
) -> tuple[list[str], float, float]:
    verifier = AnySubsetVerify(draft_tokens)
    return answered(
        loaded, num_problems, ConfidenceThreshold(0.9), verifier=verifier, gen_length=48
    )


def test_a_handful_of_problems_is_answered_alike_in_fewer_forwards(
    loaded: tuple[XLNet, Any],
) -> None:
    texts, right, forwards = verified(loaded, 12, 1)
    # A guess at random is right in one of a hundred.
    assert right >= 0.6
    drafted, _, fewer = verified(loaded, 12, 10)
    assert drafted == texts
    assert fewer < forwards / 3


@pytest.mark.slow
def test_accuracy_and_forwards_are_those_of_the_manual(loaded: tuple[XLNet, Any]) -> None:
    _, right, forwards = verified(loaded, 500, 10)
    assert right == pytest.approx(0.912, abs=0.02)
    assert forwards == pytest.approx(7.5, abs=0.3)


def test_an_answer_is_filled_in_between_given_words(
    loaded: tuple[XLNet, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    question = (
        "oscar has 10 oranges . oscar finds 78 more oranges and then gives 19 oranges to ivan . "
        "how many oranges does oscar have now ?"
    )
    template = "oscar now has [MASK:5] . after giving [MASK:4] 88 - 19 = [MASK] . #### [MASK]"
    right = "oscar now has 10 + 78 = 88 . after giving some away oscar has 88 - 19 = 69 . #### 69"
    out = generate(*loaded, question, templates=template, verifier=AnySubsetVerify(5))
    assert out.texts == [right]
    assert out.decoded.nfe.item() < 11
    command = ["generate", "--model", "mini-any", "--verifier", "AnySubsetVerify(5)", question]
    assert main([*command, "--template", template]) == 0
    assert capsys.readouterr().out.strip() == right

"""Groups of rollouts as they end, and weights that change in between."""

import re
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny_models import tiny_gemma
from toys import tiny_target

from dllm_decode import (
    AdaptiveBlocks,
    ARVerify,
    Regex,
    Rollout,
    generate,
    load_model,
    roll_out,
    score,
)
from dllm_decode.models.loading.weight_versions import version_of
from samplers import ConfidenceThreshold

LOADED: Any = load_model("mini", dtype="float32")
MODEL, TOKENIZER = LOADED
QUESTIONS = [
    f"emma has {n} apples. emma finds {m} apples. how many apples does emma have now?"
    for n, m in [(12, 30), (5, 9), (40, 2)]
]
SAMPLER = ConfidenceThreshold(0.3)
OPTIONS: Any = {"gen_length": 48, "temperature": 1.0, "num_return_sequences": 3, "num_rows": 4}


def test_groups_come_as_they_end_with_the_answers_of_generate() -> None:
    expected = generate(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **OPTIONS)
    groups = list(roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **OPTIONS))
    assert sorted(group.prompt_index for group in groups) == [0, 1, 2]
    for group in groups:
        wanted = expected.answers[3 * group.prompt_index : 3 * group.prompt_index + 3]
        assert [answer.text for answer in group.answers] == [answer.text for answer in wanted]
        for rollout, answer in zip(group.rollouts, wanted, strict=True):
            assert list(rollout.tokens[: len(answer.token_ids)]) == answer.token_ids
            assert rollout.forwards == answer.forwards
            assert rollout.finish == answer.finish_reason
        assert len({rollout.tokens for rollout in group.rollouts}) > 1
    # A group is yielded before the last one has begun.
    stream = roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **OPTIONS | {"num_rows": 3})
    assert next(stream).prompt_index == 0


def test_plug_ins_with_texts_know_the_tokenizer() -> None:
    """Delimiters that are texts were refused: "Use generate"."""
    options: Any = OPTIONS | {"blocks": AdaptiveBlocks()}
    expected = generate(MODEL, TOKENIZER, QUESTIONS[:1], SAMPLER, **options)
    (group,) = roll_out(MODEL, TOKENIZER, QUESTIONS[:1], SAMPLER, **options)
    assert [answer.text for answer in group.answers] == expected.texts


def largest_gap(rollouts: Any, law: Any = "model", model: Any = MODEL) -> float:
    with torch.no_grad():
        return score(model, rollouts, law=law).difference


def test_rollouts_of_templates_are_the_answers_of_generate_and_scored() -> None:
    """Templates differ in length, and so do the rows."""
    templates = ["now [MASK:9] . #### [MASK]", "[MASK:4] = [MASK:2] .", "emma has [MASK] ."]
    options: Any = {"temperature": 1.0, "num_return_sequences": 2, "templates": templates}
    expected = generate(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **options)
    groups = list(roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **options))
    assert sorted(group.prompt_index for group in groups) == [0, 1, 2]
    for group in groups:
        wanted = expected.answers[2 * group.prompt_index : 2 * group.prompt_index + 2]
        assert [answer.text for answer in group.answers] == [answer.text for answer in wanted]
        for rollout in group.rollouts:
            is_given = [token != MODEL.mask_id for token in rollout.template]
            assert any(is_given)
            assert rollout.commits
            assert not any(is_given[write.position] for write in rollout.commits)
        for law in ("model", "drawn"):
            assert largest_gap(group.rollouts, law) < 1e-4
    with pytest.raises(ValueError, match="template"):
        roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, temperature=1.0, templates=templates[:2])


def test_rollouts_under_a_constraint_are_scored_by_the_law_of_the_model() -> None:
    options: Any = OPTIONS | {"gen_length": 12, "constraint": Regex("[0-9][0-9] [0-9]( .)?")}
    for group in roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, **options):
        texts = [answer.text for answer in group.answers]
        assert all(re.fullmatch("[0-9][0-9] [0-9]( .)?", text) for text in texts), texts
        assert all(rollout.is_constrained for rollout in group.rollouts)
        assert all(rollout.commits for rollout in group.rollouts)
        read = [Rollout.from_json(rollout.to_json()) for rollout in group.rollouts]
        assert largest_gap(read) < 1e-4
        with pytest.raises(ValueError, match=r'law must be "model" for rollouts under a const'):
            largest_gap(read, "drawn")


def test_a_stop_string_ends_a_rollout() -> None:
    group = next(roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, stop_strings="=", **OPTIONS))
    assert {rollout.finish for rollout in group.rollouts} == {"stop"}
    assert not any("=" in answer.text for answer in group.answers)
    assert largest_gap(group.rollouts) < 1e-4


def test_a_stop_string_in_the_last_token_ends_a_rollout_too() -> None:
    """An answer that was full had the finish "length"."""
    options: Any = {"gen_length": 3, "num_return_sequences": 1}
    (unstopped,) = next(roll_out(MODEL, TOKENIZER, QUESTIONS[:1], SAMPLER, **options)).rollouts
    assert unstopped.finish == "length"
    last = TOKENIZER.decode(unstopped.tokens[-1:]).strip()
    group = next(roll_out(MODEL, TOKENIZER, QUESTIONS[:1], SAMPLER, stop_strings=last, **options))
    assert (group.rollouts[0].finish, group.answers[0].finish_reason) == ("stop", "stop")
    with pytest.raises(ValueError, match="stop_strings must be a text or texts, got 5"):
        roll_out(MODEL, TOKENIZER, QUESTIONS, SAMPLER, stop_strings=5, **options)  # type: ignore[arg-type]


def test_each_rollout_is_of_the_weights_that_it_names() -> None:
    """Weights change after each group; running rows begin again."""
    model = deepcopy(MODEL)
    models = {version_of(model): deepcopy(model)}
    versions: list[list[str]] = []
    options = OPTIONS | {"num_rows": 2}
    for group in roll_out(model, TOKENIZER, QUESTIONS, SAMPLER, **options):
        versions.append([rollout.weights for rollout in group.rollouts])
        for rollout in group.rollouts:
            assert largest_gap([rollout], model=models[rollout.weights]) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
        models[version_of(model)] = deepcopy(model)
    assert len(versions) == 3
    assert len({weights for group in versions for weights in group}) > 1


@pytest.mark.usefixtures("no_checks_of_types")
def test_what_cannot_be_scored_again_is_not_rolled_out() -> None:
    ask: Any = lambda model=MODEL, **options: roll_out(  # noqa: E731
        model, TOKENIZER, QUESTIONS, **{"temperature": 1.0} | options
    )
    with pytest.raises(ValueError, match="A rollout needs a model of masked diffusion"):
        ask(tiny_gemma(), temperature=0.0)
    verifier = ARVerify(tiny_target(MODEL.vocab_size))
    with pytest.raises(ValueError, match="A rollout needs a verifier that lets the sampler decide"):
        ask(verifier=verifier)
    with pytest.raises(ValueError, match="num_return_sequences must be at least 1"):
        ask(num_return_sequences=0)
    with pytest.warns(UserWarning, match="At temperature=0 answers are not drawn"):
        ask(temperature=0.0)

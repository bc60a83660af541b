"""A newcomer's mistake is told in one sentence that names the plug-in and the rule."""

import inspect
from typing import Any

import pytest
import torch
from tiny_models import tiny
from toys import HashModel

from dllm_decode import (
    DecodeConfig,
    DecodeOutput,
    DualCache,
    NoCache,
    NoVerifier,
    SuffixWindow,
    decode,
    decode_many,
    load_model,
)
from dllm_decode import prompts as reading
from dllm_decode.compatibility import require_plugins
from dllm_decode.models.base import ForwardInputs
from dllm_decode.models.loading.find import find_model
from dllm_decode.other_names import by_our_names
from samplers import ConfidenceThreshold, Sampler


def run(sampler: Sampler, **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 8, "stop_at_eos": False, **options}
    return decode(tiny("llada"), [[3, 4], [5]], sampler, **options)


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([5, 6], r"got 5 in row 0\. A single prompt is a batch of one: \[prompt\]\.$"),
        (["hello"], r"got 'hello' in row 0\. `generate` takes texts\.$"),
        ("hello", r"got 'hello'\. `generate` takes texts\.$"),
    ],
    ids=["ids", "texts", "text"],
)  # fmt: skip
def test_prompts_of_another_form_are_refused_with_the_remedy(
    prompts: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = inspect.unwrap(reading.token_lists)
    monkeypatch.setattr(reading, "token_lists", unchecked)
    with pytest.raises(ValueError, match=rf"^prompts must be .*{sentence}"):
        unchecked(prompts)


@pytest.mark.parametrize("source", [None, 3, ""])
def test_a_model_that_is_none_is_refused_as_a_misspelt_one(source: Any) -> None:
    with pytest.raises(FileNotFoundError, match=rf"^A model is a folder, .* got {source!r}, which"):
        inspect.unwrap(find_model)(source)


def test_what_stands_in_place_of_a_plug_in_is_told_how_to_become_one() -> None:
    model, cache, sampler = HashModel(), NoCache(), ConfidenceThreshold(0.9)
    for place, text, hint in (
        (0, load_model("mini"), "model, tokenizer = load_model"),
        (1, "ConfidenceThreshold(0.9)", "not its text; samplers.parse reads text"),
        (2, "DualCache()", "Pass the object, not its text"),
        (4, "MultiBlock()", "not its text; dllm_decode.blocks.parse reads text"),
    ):
        parts: list[Any] = [model, sampler, cache, NoVerifier()]
        parts[place : place + 1] = [text]
        with pytest.raises(ValueError, match=hint) as refused:
            require_plugins(*parts)
        assert len(str(refused.value)) < 300


def test_guidance_keeps_a_logit_of_minus_infinity() -> None:
    """Once the difference of two such logits was NaN, for which the model was blamed."""

    class NoNines(HashModel):
        def predict(self, inputs: ForwardInputs) -> torch.Tensor:
            logits = super().predict(inputs)
            logits[..., 9] = -torch.inf
            return logits

    out = decode(NoNines(), [[3, 4]], ConfidenceThreshold(0.9), gen_length=8, cfg_scale=0.5)
    assert not (out.tokens == 9).any()


def test_a_window_needs_the_facts_of_its_inner_policy() -> None:
    inner = DualCache(entry="official")
    assert inner.needs
    assert SuffixWindow(inner).needs == inner.needs


def test_a_mask_in_two_places_is_refused() -> None:
    """Once the argument was ignored."""
    model = tiny("llada")
    batch: dict[str, Any] = {"input_ids": [[3, 4]], "attention_mask": [[1, 1]]}
    mask = torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="attention_mask must be given once"):
        decode(model, batch, ConfidenceThreshold(), attention_mask=mask, gen_length=4)
    alone = decode(model, [[4]], ConfidenceThreshold(), gen_length=4)
    batch["attention_mask"] = None
    out = decode(model, batch, ConfidenceThreshold(), attention_mask=mask, gen_length=4)
    assert torch.equal(out.tokens, alone.tokens)


def test_a_number_of_rows_that_is_not_whole_is_refused() -> None:
    """Once 2.5 rows were three, or an error of torch."""
    with pytest.raises(ValueError, match=r"num_rows must be an integer, got 2\.5"):
        decode_many(tiny("llada"), [[3]], ConfidenceThreshold(), num_rows=2.5)  # type: ignore[arg-type]


def test_do_sample_keeps_the_temperature_of_the_config() -> None:
    """Once the temperature was 1, whatever the config said."""
    config = DecodeConfig(temperature=0.7)
    assert by_our_names([[3]], (), config, {"do_sample": True})[2]["temperature"] == 0.7
    with pytest.raises(ValueError, match="temperature must be a finite number, got '1'"):
        by_our_names([[3]], (), config, {"temperature": "1"})  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="stop_strings must be a text or texts, got 5"):
        by_our_names([[3]], 5, config, {})  # type: ignore[arg-type]


def test_one_prompt_for_many_is_refused_with_the_remedy() -> None:
    """Once it was said that an int is not iterable."""
    with pytest.raises(ValueError, match=r"A single prompt is a batch of one: \[prompt\]"):
        decode_many(tiny("llada"), [5, 6], ConfidenceThreshold())  # type: ignore[list-item]


def test_a_token_must_be_left() -> None:
    """Once a decode ran with every token banned."""
    model = tiny("llada")
    with pytest.raises(ValueError, match="banned_ids must leave a token"):
        run(ConfidenceThreshold(), banned_ids=tuple(range(model.vocab_size)))

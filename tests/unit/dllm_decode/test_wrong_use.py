"""What newcomers get wrong is told in one sentence that names the plug-in and the rule."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tiny_models import tiny
from toys import HashModel

from dllm_decode import (
    CachePolicy,
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
from dllm_decode.caches import CacheQuery
from dllm_decode.compatibility import require_plugins
from dllm_decode.models.base import ForwardInputs
from dllm_decode.models.loading.find import find_model
from dllm_decode.other_names import by_our_names
from samplers import ConfidenceThreshold, Decision, Sampler, View
from samplers.facts import Fact


def decision(**fields: Any) -> Decision:
    """Makes a decision past the type checker of the tests, which users do not have."""
    made = Decision(commit=torch.ones(1, 1, dtype=torch.bool))
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


@dataclass(frozen=True)
class Returning(Sampler[None]):
    """Returns what it is told to make of the view."""

    kind: str

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset() if self.kind == "remask" else super().gives

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | {Fact.LOGITS_OF_COMMITTED}

    def step(self, view: View, state: None) -> Any:
        commit, tokens = view.eligible, view.tokens
        return {
            "share": lambda: (decision(commit=view.confidence), state),
            "narrow": lambda: (decision(commit=commit[:, :3]), state),
            "none": lambda: (decision(commit=None), state),
            "remask": lambda: (decision(commit=commit, remask=commit[0]), state),
            "tokens": lambda: (decision(commit=commit, tokens=tokens.double()), state),
            "alone": lambda: Decision(commit=commit),
            "mask": lambda: (commit, state),
            "right": lambda: (Decision(commit=commit, tokens=torch.full_like(tokens, 3)), state),
        }[self.kind]()


def run(sampler: Sampler, **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 8, "stop_at_eos": False, **options}
    return decode(tiny("llada"), [[3, 4], [5]], sampler, **options)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("share", r"must return commit of kind bool and shape .*, got torch.float64"),
        ("narrow", r"must return commit of kind bool and shape \(2, 8\), got torch.bool \(2, 3\)"),
        ("none", r"must return commit of kind bool and shape \(2, 8\), got None"),
        ("remask", r"must return remask of kind bool .* got torch.bool \(8,\)"),
        ("tokens", r"must return tokens of kind integer .* got torch.float64 \(2, 8\)"),
        ("alone", r"must return the pair \(Decision, state\), got a Decision"),
        ("mask", r"must return the pair .*, got a Tensor in place of the Decision"),
    ],
)
def test_a_step_that_returns_no_decision_of_the_view_is_named(kind: str, sentence: str) -> None:
    """Once these were errors of torch and Python from inside the engine."""
    assert run(Returning("right")).forwards == 1
    with pytest.raises(RuntimeError, match=rf"^step of Returning\(kind='{kind}'\) {sentence}"):
        run(Returning(kind))


@dataclass(frozen=True)
class Listing(CachePolicy):
    """Names columns in a form that may be wrong."""

    columns: Any

    def recompute(self, query: Any) -> Any:
        return self.columns


@pytest.mark.parametrize(
    ("columns", "got"),
    [
        ([1, 2], r"\[1, 2\] \(list\)"),
        (slice(1, 2), r"slice\(1, 2, None\) \(slice\)"),
        (torch.tensor([1, 2]), r"tensor\(\[1, 2\]\) \(Tensor\)"),
        ((), r"\(\) \(tuple\)"),
        ((range(4, 6), range(1, 3)), r"\(range\(4, 6\), range\(1, 3\)\) \(tuple\)"),
    ],
)
def test_a_policy_that_returns_no_columns_is_named(columns: Any, got: str) -> None:
    sentence = rf"(?s)^recompute of Listing.* ranges of columns .*, got {got}\.$"
    with pytest.raises(RuntimeError, match=sentence):
        run(ConfidenceThreshold(0.9), cache=Listing(columns))


@dataclass(frozen=True)
class BlockAlone(CachePolicy):
    """Never computes the prompt."""

    def recompute(self, query: CacheQuery) -> Any:
        return (range(query.needed, query.block[1]),)


def test_columns_that_were_never_computed_are_added() -> None:
    """Once the answer was decoded from slots that hold nothing."""
    sampler = ConfidenceThreshold(0.9)
    alone, dual = run(sampler, cache=BlockAlone()), run(sampler, cache=DualCache())
    # One block, so that both compute everything once.
    assert torch.equal(alone.tokens, dual.tokens)
    assert torch.equal(alone.query_positions, dual.query_positions)


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


def test_a_window_needs_the_facts_of_its_inner_policy_and_takes_none_that_hides_columns() -> None:
    inner = DualCache(entry="official")
    assert inner.needs
    assert SuffixWindow(inner).needs == inner.needs
    with pytest.raises(ValueError, match=r"inner must be .* that hides no columns itself"):
        SuffixWindow(SuffixWindow(NoCache(), 0), 9)


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


@dataclass(frozen=True)
class Hiding(CachePolicy):
    """Hides columns in a form that may be wrong."""

    found: Any

    def hidden(self, query: CacheQuery) -> Any:
        return tuple(range(query.end) for _ in "x") if self.found == "all" else self.found

    def recompute(self, query: CacheQuery) -> Any:
        return (range(query.end),)


@pytest.mark.parametrize(
    "found",
    [(range(1, 2), range(3, 4)), [range(1, 2)], None, "all"],
    ids=lambda f: type(f).__name__,
)
def test_what_a_policy_hides_is_one_range(found: Any) -> None:
    """Once errors of Python, or an answer of zeros."""
    with pytest.raises(RuntimeError, match=r"^hidden of Hiding.* must return one range of columns"):
        run(ConfidenceThreshold(0.9), cache=Hiding(found))


def test_do_sample_keeps_the_temperature_of_the_config() -> None:
    """Once the temperature was 1, whatever the config said."""
    config = DecodeConfig(temperature=0.7)
    assert by_our_names([[3]], (), config, {"do_sample": True}).options["temperature"] == 0.7
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

"""The options of a decode; the error for a mistake is one sentence that names the rule."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import torch
from tiny_models import tiny
from toys import HashModel

from dllm_decode import DecodeConfig, NoCache, NoVerifier, decode, decode_many, load_model
from dllm_decode.blocks import Sequential
from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.options import DecodeOptions
from dllm_decode.core.prompts import token_lists
from dllm_decode.engine.compatibility import require_plugins
from dllm_decode.models.loading.model_folder import find_model
from dllm_decode.text.generate_options import read_options
from samplers import ConfidenceThreshold, FixedSchedule, parse
from samplers.checks import require_finite_non_negative


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gen_length": 0}, "gen_length must be between 1 and 1048576, got 0"),
        ({"gen_length": 10**9}, "gen_length must be between 1 and 1048576, got 1000000000"),
        ({"block_length": 0}, "block_length must be between 1 and 1048576, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
        # Quotients of logits were infinite, or of infinities.
        ({"temperature": 1e-38}, "temperature must be 0, or between 1e-30 and 1e30, got 1e-38"),
        ({"temperature": 10**39}, "temperature must be 0, or between 1e-30 and 1e30, got 1000000"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
        ({"top_k": 2**31}, "top_k must be between 0 and 2147483647, got 2147483648"),
        ({"cfg_scale": -0.5}, "cfg_scale must be at least 0, got -0.5"),
        ({"seed": 2**63}, "seed must be between"),
        ({"gen_length": 8.0}, "gen_length must be an integer, got 8.0"),
        ({"gen_length": True}, "gen_length must be an integer, got True"),
        ({"temperature": True}, "temperature must be a finite number, got True"),
        ({"banned_ids": [1]}, "banned_ids must be a tuple of token ids, got"),
        ({"banned_ids": (1.5,)}, "banned_ids must be a tuple of token ids, got 1.5"),
        ({"stop_at_eos": 1}, "stop_at_eos must be True or False, got 1"),
    ],
)
@pytest.mark.usefixtures("no_checks_of_types")
def test_every_field_is_checked_at_construction(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DecodeConfig(**options)
    for run in (decode, decode_many):
        with pytest.raises(ValueError, match=sentence):
            run(HashModel(), [[1]], FixedSchedule(4), **options)


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9, "top_k": 5}])
def test_proposals_can_be_drawn_at_the_least_and_the_highest_temperature(cut: Any) -> None:
    def tokens(temperature: float) -> list[int]:
        options = {"gen_length": 8, "stop_at_eos": False, "temperature": temperature, **cut}
        out = decode(HashModel(), [[1]], FixedSchedule(4), **options)
        return out.tokens[0].tolist()

    assert tokens(1e-30) == tokens(1e-9) != tokens(1e30)


def test_the_block_length_is_the_model_s_own_or_32_and_never_beyond_the_answer() -> None:
    config = DecodeConfig()
    assert config.resolved_block_length(0, model_name="m") == 32
    assert config.resolved_block_length(4, model_name="m") == 4
    assert DecodeConfig(gen_length=16).resolved_block_length(0, model_name="m") == 16
    assert DecodeConfig(gen_length=2).resolved_block_length(4, model_name="m") == 4
    with pytest.raises(ValueError, match="between 1 and gen_length=8 tokens, got 9"):
        DecodeConfig(gen_length=8, block_length=9).resolved_block_length(0, model_name="m")
    with pytest.raises(ValueError, match="block_length must be a multiple of 4"):
        DecodeConfig(block_length=6).resolved_block_length(4, model_name="m")


def test_an_unknown_option_is_a_type_error() -> None:
    """The error names options and plug-ins with similar names, or else all options."""
    similar = "must be an option of a decode, such as verifier, got 'verifer'"
    with pytest.raises(TypeError, match=similar):
        decode(HashModel(), [[1]], FixedSchedule(4), verifer=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"such as gen_length, .*, templates, got 'zzz'"):
        decode_many(HashModel(), [[1]], FixedSchedule(4), zzz=8)  # type: ignore[call-arg]


def test_keywords_are_the_fields_of_the_config_with_their_types() -> None:
    types = {option.name: option.type for option in fields(DecodeConfig)}
    assert get_type_hints(DecodeOptions) == types
    documented = str(DecodeConfig.__doc__).partition("Attributes:")[2].partition("Raises:")[0]
    assert re.findall(r"^        (\w+): ", documented, re.M) == list(types)


def test_none_keeps_an_option_as_it_is() -> None:
    config = DecodeConfig(gen_length=8, block_length=4)
    updates: Any = {"block_length": None, "gen_length": None, "seed": 1}
    assert config.updated(**updates) == DecodeConfig(gen_length=8, block_length=4, seed=1)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (list(range(10_000)), r"^temperature must be a finite number, got \[0, 1, .{47,}9999\]\.$"),
        (10**5000, "^temperature must be a finite number, got <int that is too long to print>"),
    ],
    ids=["list", "integer"],
)
def test_a_long_value_is_quoted_in_one_short_line(value: object, said: str) -> None:
    """The list was quoted in full, and Python could not print the integer at all."""
    with pytest.raises(ValueError, match=said):
        require_finite_non_negative("temperature", value)
    with pytest.raises(ValueError, match=r"'x{56}\.\.\.x{19}'") as refused:
        parse("x" * 50_000)
    assert len(str(refused.value)) < 500


def test_top_k_beyond_the_vocabulary_leaves_every_token_in() -> None:
    options = {"gen_length": 8, "temperature": 1.0, "confidence_from": "tempered"}
    model = HashModel()
    all_tokens = decode(model, [[1, 4]], FixedSchedule(4), **options).tokens  # type: ignore[arg-type]
    for top_k in (model.vocab_size, 2**31 - 1):
        limited = decode(model, [[1, 4]], FixedSchedule(4), top_k=top_k, **options)  # type: ignore[arg-type]
        assert torch.equal(limited.tokens, all_tokens)


MODEL, SAMPLER = tiny("llada"), ConfidenceThreshold()
CONFIG = DecodeConfig(temperature=0.7)
read_lists: Any = token_lists
find: Any = find_model
named: Any = read_options
many: Any = decode_many
A_SINGLE_ONE = r"A single prompt is a batch of one: \[prompt\]"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: read_lists([5, 6]), rf"^prompts must be .*got 5 in row 0\. {A_SINGLE_ONE}\.$"),
    (lambda: read_lists(["hello"]), r"^prompts must .*got 'hello' in row 0\. `generate` takes tex"),
    (lambda: read_lists("hello"), r"^prompts must be .*got 'hello'\. `generate` takes texts\.$"),
    # Once it was said that an int is not iterable.
    (lambda: many(MODEL, [5, 6], SAMPLER), A_SINGLE_ONE),
    # Once 2.5 rows were three, or an error of torch.
    (lambda: many(MODEL, [[3]], SAMPLER, num_rows=2.5), r"num_rows must be an integer, got 2\.5"),
    # Once a decode ran with every token banned.
    (lambda: decode(MODEL, [[3, 4]], SAMPLER, banned_ids=tuple(range(MODEL.vocab_size))),
     "banned_ids must leave a token"),
    (lambda: named([[3]], (), CONFIG, {"temperature": "1"}), "must be a finite number, got '1'"),
    (lambda: named([[3]], 5, CONFIG, {}), "stop_strings must be a text or texts, got 5"),
    *((lambda source=source: find(source), rf"^A model is a folder, .* got {source!r}, which")
      for source in (None, 3, "")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
@pytest.mark.usefixtures("no_checks_of_types")
def test_a_mistake_is_refused_with_the_remedy(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        call()


def test_what_stands_in_place_of_a_plug_in_is_refused_in_one_sentence() -> None:
    right: list[Any] = [
        HashModel(), ConfidenceThreshold(0.9), NoCache(), NoVerifier(), Sequential()
    ]  # fmt: skip
    require_plugins(*right)
    wrong = [
        (place, rf"^{name} must be .*, got .*\.$", value)
        for place, name in enumerate(("model", "sampler", "cache", "verifier", "blocks"))
        for value in (None, "text", [[1, 2]], type(right[place]), right[(place + 1) % 5])
    ]
    # These errors also say how to get the right object.
    wrong += [
        (0, "model, tokenizer = load_model", load_model("mini")),
        (
            1,
            "not its text; dllm_decode.settings.plugins.parse reads",
            "ConfidenceThreshold(0.9)",
        ),
        (2, "Pass the object, not its text", "DualCache()"),
        (4, "Pass the object, not its text", "MultiBlock()"),
    ]
    for place, sentence, value in wrong:
        with pytest.raises(ValueError, match=sentence) as refused:
            require_plugins(*right[:place], value, *right[place + 1 :])
        assert len(str(refused.value)) < 300


def test_guidance_keeps_a_logit_of_minus_infinity() -> None:
    """Once the difference of two such logits was NaN, and the error named the model."""

    class NoNines(HashModel):
        def predict(self, inputs: ForwardInputs) -> torch.Tensor:
            logits = super().predict(inputs)
            logits[..., 9] = -torch.inf
            return logits

    out = decode(NoNines(), [[3, 4]], ConfidenceThreshold(0.9), gen_length=8, cfg_scale=0.5)
    assert not (out.tokens == 9).any()


def test_a_mask_in_two_places_is_refused() -> None:
    """Once the argument was ignored."""
    batch: dict[str, Any] = {"input_ids": [[3, 4]], "attention_mask": [[1, 1]]}
    mask = torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="attention_mask must be given once"):
        decode(MODEL, batch, SAMPLER, attention_mask=mask, gen_length=4)
    alone = decode(MODEL, [[4]], SAMPLER, gen_length=4)
    batch["attention_mask"] = None
    out = decode(MODEL, batch, SAMPLER, attention_mask=mask, gen_length=4)
    assert torch.equal(out.tokens, alone.tokens)


def test_do_sample_keeps_the_temperature_of_the_config() -> None:
    """Once the temperature was 1, even if the config had another."""
    assert read_options([[3]], (), CONFIG, {"do_sample": True})[2]["temperature"] == 0.7

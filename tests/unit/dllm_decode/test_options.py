"""The one box of options."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import torch

from dllm_decode import DecodeConfig, decode, decode_many
from dllm_decode.options import (
    DecodeOptions,
    require_bool,
    require_ids,
    require_integer,
    require_number,
)
from samplers import FixedSchedule, parse
from tests.toys import HashModel


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gen_length": 0}, "gen_length must be between 1 and 1048576, got 0"),
        ({"gen_length": 10**9}, "gen_length must be between 1 and 1048576, got 1000000000"),
        ({"block_length": 0}, "block_length must be between 1 and 1048576, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
        ({"top_k": -1}, "top_k must be between 0 and 2147483647, got -1"),
        ({"top_k": 2**31}, "top_k must be between 0 and 2147483647, got 2147483648"),
        ({"cfg_scale": -0.5}, "cfg_scale must be at least 0, got -0.5"),
        ({"seed": 2**63}, "seed must be between"),
    ],
)
def test_every_field_is_checked_at_construction(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DecodeConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence):
        decode(HashModel(), [[1]], FixedSchedule(4), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence):
        decode_many(HashModel(), [[1]], FixedSchedule(4), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "value", "sentence"),
    [
        (lambda value: require_integer("gen_length", value, least=1), 8.0, "an integer, got 8.0"),
        (lambda value: require_integer("gen_length", value, least=1), True, "an integer, got True"),
        (lambda value: require_number("temperature", value), "hot", "a finite number, got 'hot'"),
        (lambda value: require_number("temperature", value), True, "a finite number, got True"),
        (lambda value: require_ids("banned_ids", value), [1], "a tuple of token ids, got"),
        (lambda value: require_ids("banned_ids", value), (1.5,), "a tuple of token ids, got 1.5"),
        (lambda value: require_bool("stop_at_eos", value), 1, "True or False, got 1"),
    ],
)
def test_wrong_types_are_refused(
    check: Callable[[object], None], value: object, sentence: str
) -> None:
    """The tests' own type checker would be first if these went through `DecodeConfig`."""
    with pytest.raises(ValueError, match=f"must be {sentence}"):
        check(value)


def test_the_block_length_is_the_model_s_own_or_32_and_never_beyond_the_answer() -> None:
    config = DecodeConfig()
    assert config.resolved_block_length(0, model="m") == 32
    assert config.resolved_block_length(4, model="m") == 4
    assert DecodeConfig(gen_length=16).resolved_block_length(0, model="m") == 16
    assert DecodeConfig(gen_length=2).resolved_block_length(4, model="m") == 4
    with pytest.raises(ValueError, match="between 1 and gen_length=8 tokens, got 9"):
        DecodeConfig(gen_length=8, block_length=9).resolved_block_length(0, model="m")
    with pytest.raises(ValueError, match="block_length must be a multiple of 4"):
        DecodeConfig(block_length=6).resolved_block_length(4, model="m")


def test_keywords_override_the_config() -> None:
    config = DecodeConfig(gen_length=8, temperature=2.0, seed=1, stop_at_eos=False)
    plain = decode(HashModel(), [[1]], FixedSchedule(8), config=config)
    same = decode(
        HashModel(), [[1]], FixedSchedule(8),
        config=DecodeConfig(gen_length=8, temperature=2.0), seed=1, stop_at_eos=False,
    )  # fmt: skip
    other = decode(HashModel(), [[1]], FixedSchedule(8), config=config, seed=2)
    (one_of_many,) = decode_many(HashModel(), [[1]], FixedSchedule(8), config=config)
    assert plain.tokens.shape == (1, 8)
    assert torch.equal(plain.tokens, same.tokens)
    assert torch.equal(plain.tokens, one_of_many.tokens)
    assert not torch.equal(plain.tokens, other.tokens)


def test_an_unknown_option_is_a_type_error() -> None:
    """It names options with a similar name, or all of them."""
    similar = "must be an option of the decode, such as gen_length, got 'genlength'"
    with pytest.raises(TypeError, match=similar):
        decode(HashModel(), [[1]], FixedSchedule(4), genlength=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"such as gen_length, .*, truncate_at_eos, got 'zzz'"):
        decode_many(HashModel(), [[1]], FixedSchedule(4), zzz=8)  # type: ignore[call-arg]


def test_keywords_are_the_fields_of_the_config_with_their_types() -> None:
    types = {option.name: option.type for option in fields(DecodeConfig)}
    assert get_type_hints(DecodeOptions) == types
    documented = str(DecodeConfig.__doc__).partition("Attributes:")[2].partition("Raises:")[0]
    assert re.findall(r"^        (\w+): ", documented, re.M) == list(types)


def test_none_keeps_an_option_as_it_is() -> None:
    config = DecodeConfig(gen_length=8, block_length=4)
    given: Any = {"block_length": None, "gen_length": None, "seed": 1}
    assert config.updated(**given) == DecodeConfig(gen_length=8, block_length=4, seed=1)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * 10_000, r"^temperature must be a finite number, got 'x{56}\.\.\.x{19}'\.$"),
        (list(range(10_000)), r"^temperature must be a finite number, got \[0, 1, .{47,}9999\]\.$"),
        (torch.zeros(9, 9), r"^temperature must be a finite number, got tensor.{50,80}\.$"),
        (10**5000, "^temperature must be a finite number, got <int that is too long to print>"),
    ],
    ids=["text", "list", "tensor", "integer"],
)
def test_a_long_value_is_quoted_in_one_short_line(value: object, said: str) -> None:
    """Ten thousand characters were echoed whole, and Python could not print the last at all."""
    with pytest.raises(ValueError, match=said):
        require_number("temperature", value)


def test_a_long_expression_is_quoted_short() -> None:
    with pytest.raises(ValueError, match=r"'x{56}\.\.\.x{19}'") as refused:
        parse("x" * 50_000)
    assert len(str(refused.value)) < 400


def test_top_k_beyond_the_vocabulary_leaves_every_token_in() -> None:
    options = {"gen_length": 8, "temperature": 1.0, "confidence_from": "tempered"}
    model = HashModel()
    all_tokens = decode(model, [[1, 4]], FixedSchedule(4), **options).tokens  # type: ignore[arg-type]
    for top_k in (model.vocab_size, 2**31 - 1):
        found = decode(model, [[1, 4]], FixedSchedule(4), top_k=top_k, **options)  # type: ignore[arg-type]
        assert torch.equal(found.tokens, all_tokens)

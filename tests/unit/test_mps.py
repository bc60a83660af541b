"""Devices without float64, as Apple's are: models decode there as on the CPU."""

from typing import Any

import pytest
import torch
from families_under_test import load_without_tokenizer as load_model
from pretended import MPS, Accelerator, NoFloat64Error
from samplers_under_test import INSTANCES
from spied import MODELS

from dllm_decode import (
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
    SelfVerify,
    decode,
)
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule

FAMILIES = ("llada", "dream", "sdar")
PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]


class Pair:
    """One model on the CPU and on a pretended device of Apple's."""

    def __init__(self, family: str) -> None:
        self.here: MaskedTransformer = load_model(MODELS / family, dtype="float32")[0]
        with Accelerator(MPS):
            self.there: MaskedTransformer = load_model(
                MODELS / family, dtype="float32", device="mps"
            )[0]
        assert self.there.device == MPS

    def decode(self, sampler: Any, **options: Any) -> None:
        options = {"gen_length": 8, "block_length": 4, **options}
        expected = decode(self.here, PROMPTS, sampler, **options)
        with Accelerator(MPS):
            found = decode(self.there, PROMPTS, sampler, **options)
        assert torch.equal(expected.tokens, found.tokens)
        assert torch.equal(expected.nfe, found.nfe)


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    return {family: Pair(family) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cache_decodes_without_float64(family: str, pairs: dict[str, Pair]) -> None:
    for cache in (NoCache(), PrefixCache(), DualCache(2), FreeCache(), DelayedCache()):
        pairs[family].decode(FixedSchedule(4), cache=cache)


@pytest.mark.parametrize("evaluate", ["batch", "tree", "sequential"])
def test_self_verification_decodes_without_float64(evaluate: Any, pairs: dict[str, Pair]) -> None:
    pairs["llada"].decode(FixedSchedule(4), cache=DualCache(), verifier=SelfVerify(3, evaluate))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("sampler", INSTANCES, ids=repr)
def test_samplers_decode_without_float64_or_name_what_they_lack(
    sampler: Any, temperature: float, pairs: dict[str, Pair]
) -> None:
    """Noise and a few rules are in float64 still, which is refused rather than rounded."""
    try:
        pairs["llada"].decode(sampler, temperature=temperature)
    except NoFloat64Error as error:
        pytest.xfail(str(error))


def test_weights_in_float64_are_refused_there() -> None:
    with Accelerator(MPS), pytest.raises(ValueError, match="float64, which mps devices do not"):
        load_model(MODELS / "llada", dtype="float64", device="mps")

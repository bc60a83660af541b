"""Every sampler and verifier that the check lets through finish on every model."""

from dataclasses import dataclass

import pytest
import torch
from plugins_under_test import INSTANCES
from torch import Tensor
from toys import HashModel, tiny_target

from dllm_decode import NoVerifier, SelfVerify, Verifier
from dllm_decode.caches import NoCache
from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.options import DecodeConfig, RequestOptions
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.engine.compatibility import check
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.engine.loop import run
from dllm_decode.verify import (
    S2D2,
    AnySubsetVerify,
    ARVerify,
    DraftLength,
    Guided,
    MinimumSpan,
    PathSearch,
    Sampled,
    Tree,
)
from samplers import JointThreshold, ReMDM, Sampler

TARGET, LENGTH = tiny_target(), DraftLength(2, 4)
NUM_MODELS = 200
SCALES, RAISED = (1.0, 3.0, 8.0, 20.0), (0.0, 2.0, 5.0, 25.0)
VERIFIERS: tuple[Verifier, ...] = (
    NoVerifier(), SelfVerify(3), SelfVerify(3, "tree"), SelfVerify(2, reach="block"),
    S2D2(MinimumSpan(1)), S2D2(), AnySubsetVerify(3), Guided(TARGET),
    ARVerify(TARGET, LENGTH, PathSearch(num_forwards=2)), ARVerify(TARGET, LENGTH, Tree(budget=6)),
    ARVerify(TARGET, LENGTH, Sampled()),
)  # fmt: skip
# The default run has one pair that once died, and one whose sampler edits.
FEW: tuple[Sampler, ...] = (ReMDM(5, "rescale", 0.5), JointThreshold())


@dataclass
class Adversary(HashModel):
    """In each row another model: the first token says how peaked it is, and how it likes EOS."""

    reads_any_subset: bool = True

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = super().predict(inputs)
        number = inputs.tokens[:, 0]
        scale = torch.tensor(SCALES, dtype=logits.dtype)[number % len(SCALES)]
        raised = torch.tensor(RAISED, dtype=logits.dtype)[number // len(SCALES)]
        logits = logits / self.peak * 3.0 * scale[:, None, None]
        logits[..., self.eos_ids[0]] += raised[:, None]
        return logits


MODELS = (Adversary(), Adversary(logit_shift=1), Adversary(causal_block_length=4))


def request(decoder: Decoder, number: int) -> Request:
    """Returns a request for one of the models, with options of its own."""
    num_kinds = len(SCALES) * len(RAISED)
    prompt = [number % num_kinds, 1 + number // num_kinds, *range(number % 5)]
    options: RequestOptions = {
        "temperature": (0.0, 0.0, 1.2)[number % 3], "gen_length": 8 - number % 2,
        "truncate_at_eos": number % 4 != 3, "stop_at_eos": number % 7 != 6, "seed": number,
    }  # fmt: skip
    if isinstance(decoder.verifier, ARVerify) and isinstance(decoder.verifier.drafting, Sampled):
        # All rows of a decode with drawn drafts have one temperature.
        options["temperature"] = 0.0
    return decoder.request(prompt, number, **options)


def errors(model: Adversary, sampler: Sampler, verifier: Verifier) -> list[str]:
    """Returns the errors of the decodes of all models."""
    config = DecodeConfig(gen_length=8, block_length=4)
    decoder = new_decoder(model, sampler, verifier=verifier, config=config)
    requests = [request(decoder, number) for number in range(NUM_MODELS)]
    ended = run(decoder, RequestQueue(requests), NUM_MODELS)
    return [f"{one.index}: {one.error}" for one in ended if one.error]


def is_refused(model: Adversary, sampler: Sampler, verifier: Verifier) -> bool:
    try:
        check(model, sampler, NoCache(), verifier=verifier)
        verifier.check(model)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("sampler", FEW, ids=repr)
def test_samplers_that_revise_finish_under_s2d2(sampler: Sampler) -> None:
    """ReMDM settled masks: a round that verified had dropped its last step."""
    assert errors(MODELS[2], sampler, S2D2(MinimumSpan(2))) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* has no effect")
@pytest.mark.parametrize("sampler", INSTANCES, ids=repr)
def test_every_pair_that_is_not_refused_finishes_on_adversarial_models(sampler: Sampler) -> None:
    pairs = [
        (model, verifier)
        for model in MODELS
        for verifier in VERIFIERS
        if not is_refused(model, sampler, verifier)
    ]
    assert pairs
    for model, verifier in pairs:
        assert errors(model, sampler, verifier) == [], (model, verifier)

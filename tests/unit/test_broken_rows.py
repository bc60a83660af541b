"""A rule that is broken in one row ends that row with an error, and no other."""

from typing import Any

import pytest
import torch
from spied import FAMILIES, LAW_OPTIONS, load_tiny, tiny

from dllm_decode import (
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    RequestQueue,
    SelfVerify,
    decode,
    decode_many,
    new_decoder,
    run,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.options import DecodeConfig
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

POISON = 9
PROMPTS = [[3, 4, 5], [POISON, 6], [7], [1, POISON, 2, 3, 4, 5, 6, 7], [8] * 7, [2, 5]]
SOUND = [n for n, prompt in enumerate(PROMPTS) if POISON not in prompt]
OPTIONS: Any = {"gen_length": 10, "block_length": 4, "stop_at_eos": False}


def poisoned(family: str) -> MaskedTransformer:
    """Returns a model whose logits are NaN in every row that holds one token."""
    model = load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family])
    with torch.inference_mode():
        model.transformer.embedding.weight[POISON] = torch.nan
    return model


@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_one_row_ends_that_request_alone(family: str, cache: Any, verifier: Any) -> None:
    model = poisoned(family)
    # NaN is never proposed, so that sound rows stay sound.
    options = {**OPTIONS, "banned_ids": (POISON,), "cache": cache, "verifier": verifier}
    sampler = FixedSchedule(2)
    config = DecodeConfig(**OPTIONS, banned_ids=(POISON,))
    decoder = new_decoder(model, sampler, cache=cache, verifier=verifier, config=config)
    requests = [decoder.request(prompt, n) for n, prompt in enumerate(PROMPTS)]
    found = {answer.request: answer for answer in run(decoder, RequestQueue(requests), 2)}
    assert sorted(found) == list(range(len(PROMPTS)))
    for n, answer in found.items():
        if n not in SOUND:
            assert "must give logits without NaN or infinity" in answer.error
            continue
        assert not answer.error
        prompts = [PROMPTS[n] if i == n else [1] for i in range(n + 1)]
        alone = decode(model, prompts, sampler, **options)
        assert torch.equal(answer.output.tokens[0], alone.tokens[n])
    with pytest.raises(RuntimeError, match="must give logits without NaN or infinity"):
        decode(model, PROMPTS, sampler, **options)
    answers = decode_many(model, PROMPTS, sampler, num_rows=1, **options)
    assert torch.equal(next(answers).tokens[0], found[0].output.tokens[0])
    with pytest.raises(RuntimeError, match="must give logits without NaN or infinity"):
        next(answers)


class Stuck(ConfidenceThreshold):
    """Commits nothing in rows whose first token is 5."""

    def step(self, view: Any, state: Any) -> Any:
        decision, state = super().step(view, state)
        stuck = view.tokens[:, :1] == 5
        return decision.__class__(commit=decision.commit & ~stuck), state


def test_a_sampler_that_breaks_its_contract_in_one_row_ends_that_row() -> None:
    sampler: Sampler = Stuck(0.9)
    decoder = new_decoder(tiny("llada"), sampler, config=DecodeConfig(**OPTIONS))
    templates = [[], [5], [], [5, 6]]
    requests = [decoder.request([3], n, template=given) for n, given in enumerate(templates)]
    found = {answer.request: answer.error for answer in run(decoder, RequestQueue(requests), 4)}
    for n, given in enumerate(templates):
        assert ("must commit at least one eligible position" in found[n]) == bool(given)


def test_a_cancel_that_comes_too_late_ends_no_later_request_of_the_same_index() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    queue = RequestQueue([decoder.request([3], 0)])
    first = [answer.output.tokens.tolist() for answer in run(decoder, queue, 1)]
    queue.cancel(0)
    queue.put(decoder.request([3], 0))
    assert [answer.output.tokens.tolist() for answer in run(decoder, queue, 1)] == first
    queue.put(decoder.request([3], 0))
    queue.cancel(0)
    assert not list(run(decoder, queue, 1))
    for index in range(5):
        queue.cancel(index)
    assert not list(run(decoder, queue, 1))
    assert not queue.take_cancelled(range(5))

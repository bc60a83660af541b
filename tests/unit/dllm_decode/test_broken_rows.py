"""A rule that is broken in one row ends that row with an error, and no other."""

from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from served import Streamer
from tiny_models import FAMILIES, LAW_OPTIONS, load_tiny, tiny
from toys import HashModel

from dllm_decode import (
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    RequestQueue,
    SelfVerify,
    Verifier,
    decode,
    decode_many,
    new_decoder,
    run,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.options import DecodeConfig
from dllm_decode.streaming import draft_observer
from dllm_decode.views import look
from samplers import Decision, FixedSchedule, Sampler
from samplers.facts import Fact

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


@pytest.mark.exhaustive(4)
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


def test_a_sampler_that_breaks_its_contract_in_one_row_ends_that_row() -> None:
    # Commits nothing in rows whose first token is 5.
    sampler = plugin(
        Sampler,
        step=lambda self, view, state: (Decision(view.eligible & (view.tokens[:, :1] != 5)), state),
    )
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


def test_a_row_that_takes_more_steps_than_promised_ends_alone() -> None:
    # Settles nothing in rows that begin with 5.
    endless = plugin(
        Sampler, gives=frozenset(), needs=frozenset({Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED}),
        max_steps=lambda self, num_masks: 4,
        step=lambda self, view, state: (
            Decision(view.eligible, settle=view.eligible & (view.tokens[:, :1] != 5)), state
        ),
    )  # fmt: skip
    decoder = new_decoder(tiny("llada"), endless, config=DecodeConfig(**OPTIONS))
    requests = [decoder.request([3], n, template=[given]) for n, given in enumerate((5, 7))]
    found = {answer.request: answer.error for answer in run(decoder, RequestQueue(requests), 2)}
    assert "promises to finish a block within 4 steps" in found[0]
    assert not found[1]


def silent(self: Any, decoder: Any, state: Any) -> Any:
    """Decides by itself, and commits nothing."""
    state, seen = look(decoder, state)
    return state, seen._replace(decision=Decision(torch.zeros_like(seen.view.eligible)))


def test_a_verifier_that_decides_is_named_for_what_it_decides() -> None:
    verifier = plugin(Verifier, look=silent)
    with pytest.raises(RuntimeError, match=r"Own.* must commit at least one eligible position"):
        decode(tiny("llada"), [[3]], FixedSchedule(2), verifier=verifier, **OPTIONS)


def test_requests_with_what_is_no_token_or_no_option_of_a_request_are_refused() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    with pytest.raises(ValueError, match=r"Token ids must be in \[0, 512\)"):
        decoder.request([3], 0, template=[99999])
    wrong: Any = {"block_length": 2}
    with pytest.raises(ValueError, match="An option of a request must be one of gen_length,"):
        decoder.request([3], 0, **wrong)
    with pytest.raises(ValueError, match="num_rows must be at least 1, got 0"):
        next(run(decoder, RequestQueue(), 0))


def test_prompts_are_made_outside_of_inference_mode() -> None:
    def prompts() -> Any:
        for token in (3, 4):
            assert not torch.is_inference_mode_enabled()
            yield [token]

    assert len(list(decode_many(tiny("llada"), prompts(), FixedSchedule(2), **OPTIONS))) == 2


def test_a_stream_ends_once_where_a_block_goes_on_after_the_answer() -> None:
    """Its end was told after each round in which the columns after the answer were decoded."""
    model, streamer = HashModel(causal_block_length=8, banned_ids=(22,)), Streamer()
    decode(
        model, [[1, 2, 3]], FixedSchedule(8), gen_length=7, stop_at_eos=False,
        observers=[draft_observer(streamer)],
    )  # fmt: skip
    assert streamer.ended == len(streamer.texts) == 1

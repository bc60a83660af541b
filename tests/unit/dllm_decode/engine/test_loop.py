"""One batch of rows, and many prompts through few rows."""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from plugins_under_test import plugin
from tiny_models import FAMILIES, LAW_OPTIONS, TINY_PROMPTS, ending, load_tiny, tiny
from toys import DriftingModel, HashModel, tiny_target

from dllm_decode import (
    ARVerify,
    DecodeConfig,
    DecodeOutput,
    DraftLength,
    DualCache,
    ForwardInputs,
    FreeCache,
    NoCache,
    NoVerifier,
    PathSearch,
    PrefixCache,
    Request,
    RequestQueue,
    Sampled,
    SelfVerify,
    Tree,
    Verifier,
    decode,
    decode_many,
    new_decoder,
    rounds,
    run,
)
from dllm_decode.core.options import DecodeOptions
from dllm_decode.engine.ended import EndedRequest
from samplers import Decision, FixedSchedule, Sampler, Wino
from samplers.facts import Fact


def test_lengths_count_up_to_and_including_the_first_eos() -> None:
    model = HashModel()
    out = decode(model, [[1]] * 3, FixedSchedule(4), gen_length=4, block_length=4)
    tokens = torch.tensor([[22, 1, 1, 1], [1, 1, 22, 22], [1, 2, 3, 4]])
    out = replace(out, tokens=tokens, nfe=torch.tensor([2, 2, 4]))
    assert out.lengths().tolist() == [1, 3, 4]
    assert out.answers() == [[], [1, 1], [1, 2, 3, 4]]
    assert out.tokens_per_forward == 1.0
    assert replace(out, nfe=torch.zeros(3).long()).tokens_per_forward == 8.0


@dataclass
class Broken(HashModel):
    """Gives a logit that is no number in its second forward."""

    value: float = math.nan
    num_forwards: int = 0

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        self.num_forwards += 1
        logits = super().predict(inputs)
        if self.num_forwards == 2:
            logits[-1, 0, 5] = self.value
        return logits


@pytest.mark.parametrize(
    ("sampler", "verifier", "value"),
    [
        (FixedSchedule(4), NoVerifier(), math.nan), (Wino(), NoVerifier(), math.inf),
        # For a drafter's tree such a logit ended in a stack trace.
        *((FixedSchedule(4), ARVerify(tiny_target(), DraftLength(1, 2), drafting), math.nan)
          for drafting in (PathSearch(), Sampled(), Tree(5))),
    ],
    ids=repr,
)  # fmt: skip
def test_a_logit_that_is_no_number_is_an_error_that_names_the_step(
    sampler: Sampler, verifier: Verifier, value: float
) -> None:
    options: Any = {"gen_length": 8, "stop_at_eos": False, "verifier": verifier}
    with pytest.raises(RuntimeError, match=r"hash model must give logits without NaN or inf.* 2"):
        decode(Broken(peak=1.0, value=value), [[1], [2, 3]], sampler, **options)


# A row in which a rule is broken ends with an error; other rows go on.


def ended(decoder: Any, requests: Sequence[Request], num_rows: int = 4) -> dict[int, EndedRequest]:
    return {end.index: end for end in run(decoder, RequestQueue(requests), num_rows)}


POISON = 9
POISONED = [[3, 4, 5], [POISON, 6], [7], [1, POISON, 2, 3, 4, 5, 6, 7], [8] * 7, [2, 5]]
NO_NUMBER = "must give logits without NaN or infinity"
OPTIONS: Any = {"gen_length": 10, "block_length": 4, "stop_at_eos": False}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_one_row_ends_that_request_alone(family: str, cache: Any, verifier: Any) -> None:
    model = load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family])
    with torch.inference_mode():
        model.transformer.embedding.weight[POISON] = torch.nan
    # NaN is never proposed, so that sound rows stay sound.
    config = DecodeConfig(**OPTIONS, banned_ids=(POISON,))
    options: Any = {"cache": cache, "verifier": verifier, "config": config}
    decoder = new_decoder(model, FixedSchedule(2), **options)
    results = ended(decoder, [decoder.request(prompt, n) for n, prompt in enumerate(POISONED)], 2)
    for n, prompt in enumerate(POISONED):
        if POISON in prompt:
            assert NO_NUMBER in results[n].error
            continue
        assert not results[n].error
        alone = decode(model, [prompt], FixedSchedule(2), **options)
        assert torch.equal(results[n].output.tokens, alone.tokens)
    with pytest.raises(RuntimeError, match=NO_NUMBER):
        decode(model, POISONED, FixedSchedule(2), **options)
    answers = decode_many(model, POISONED, FixedSchedule(2), num_rows=1, **options)
    assert torch.equal(next(answers).tokens, results[0].output.tokens)
    with pytest.raises(RuntimeError, match=NO_NUMBER):
        next(answers)


# Both are correct unless the first token is 5. Then the first sampler commits nothing, and the
# second settles nothing.
IDLE = plugin(
    Sampler,
    step=lambda self, view, state: (Decision(view.eligible & (view.tokens[:, :1] != 5)), state),
)
ENDLESS = plugin(
    Sampler, gives=frozenset(), needs=frozenset({Fact.HAS_MASK, Fact.LOGITS_OF_COMMITTED}),
    max_steps=lambda self, num_masks: 4,
    step=lambda self, view, state: (
        Decision(view.eligible, settle=view.eligible & (view.tokens[:, :1] != 5)), state
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("sampler", "sentence"),
    [
        (IDLE, "must commit at least one eligible position"),
        (ENDLESS, "promises to finish a block within 4 steps"),
    ],
)
def test_a_sampler_that_breaks_its_contract_in_one_row_ends_that_row(
    sampler: Any, sentence: str
) -> None:
    decoder = new_decoder(tiny("llada"), sampler, config=DecodeConfig(**OPTIONS))
    templates = [[7], [5], [7, 8], [5, 6]]
    requests = [decoder.request([3], n, template=template) for n, template in enumerate(templates)]
    for n, answer in ended(decoder, requests).items():
        assert (sentence in answer.error) == (templates[n][0] == 5), answer.error


def test_a_cancel_that_comes_too_late_ends_no_later_request_of_the_same_index() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    request = decoder.request([3], 0)
    queue = RequestQueue([request])
    assert len(list(run(decoder, queue, 1))) == 1
    queue.cancel(0)
    queue.put(request)
    assert len(list(run(decoder, queue, 1))) == 1
    queue.put(request)
    for index in range(5):
        queue.cancel(index)
    assert not list(run(decoder, queue, 1))
    assert not queue.take_cancelled(range(5))


def test_requests_with_what_is_no_token_or_no_option_of_a_request_are_refused() -> None:
    decoder = new_decoder(tiny("llada"), FixedSchedule(2), config=DecodeConfig(**OPTIONS))
    with pytest.raises(ValueError, match=r"Token ids must be in \[0, 512\)"):
        decoder.request([3], 0, template=[99999])
    wrong: Any = {"block_length": 2}
    with pytest.raises(ValueError, match="An option of a request must be one of gen_length,"):
        decoder.request([3], 0, **wrong)
    with pytest.raises(ValueError, match="num_rows must be at least 1, got 0"):
        next(run(decoder, RequestQueue(), 0))


def test_rows_that_join_save_forwards_of_the_whole() -> None:
    batched, joined = ending("llada"), ending("llada")
    options: Any = {"gen_length": 24, "block_length": 4, "cache": DualCache()}
    for start in range(0, len(TINY_PROMPTS), 2):
        decode(batched, TINY_PROMPTS[start : start + 2], FixedSchedule(4), **options)
    list(decode_many(joined, TINY_PROMPTS, FixedSchedule(4), num_rows=2, **options))
    assert len(joined.calls) < len(batched.calls)
    # A row that has just joined is open where the other is already further.
    ends = [set(call.positions[:, -1].tolist()) for call in joined.calls]
    assert max(map(len, ends)) == max(len(call.tokens) for call in joined.calls) == 2


def test_prompts_and_templates_are_taken_when_a_place_is_free() -> None:
    """The source also runs outside of inference mode."""
    taken: list[int] = []

    def source() -> Iterator[list[int]]:
        for index in count():
            assert not torch.is_inference_mode_enabled()
            taken.append(index)
            yield [index % 20 + 1]

    outputs = many(source(), num_rows=4, templates=([index % 20 + 1] for index in count()))
    assert not taken
    assert int(next(outputs).tokens[0, 0]) == 1
    assert len(taken) == 4
    for index in range(1, 25):
        assert int(next(outputs).tokens[0, 0]) == index % 20 + 1


def test_the_settings_are_those_of_decode() -> None:
    of_decode, of_many = (inspect.signature(call).parameters for call in (decode, decode_many))
    assert list(of_decode) == [name for name in of_many if name not in ("num_rows", "seeds")]
    assert of_many["num_rows"].kind is inspect.Parameter.KEYWORD_ONLY
    for name, parameter in of_decode.items():
        assert parameter.default == of_many[name].default
        # Compares texts, because each mention of a tensor's shape is a new type.
        is_same = str(parameter.annotation) == str(of_many[name].annotation)
        assert is_same or name in ("prompts", "templates")
    assert of_decode["options"].annotation == Unpack[DecodeOptions]


def test_with_a_reserve_keys_and_values_are_allocated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As prompts grow in two rows, keys and values are copied if there is no reserve."""
    decoder = new_decoder(
        tiny("sdar"), FixedSchedule(2), cache=DualCache(),
        config=DecodeConfig(gen_length=8, stop_at_eos=False),
    )  # fmt: skip
    prompts = [[5] * length for length in (3, 4, 9, 17, 30)]

    def tokens(**options: int) -> list[list[int]]:
        queue = RequestQueue(decoder.request(prompt, n) for n, prompt in enumerate(prompts))
        ended = [end for listed in rounds(decoder, queue, 2, **options) for end in listed]
        return [end.output.tokens[0].tolist() for end in sorted(ended, key=lambda e: e.index)]

    expected = tokens()

    def refuse(*_: object) -> None:
        raise AssertionError("Keys and values were copied.")

    monkeypatch.setattr("dllm_decode.core.model.pad", refuse)
    assert tokens(reserved_slots=40) == expected
    with pytest.raises(AssertionError, match="were copied"):
        tokens()


PROMPTS = [[1], [2], [3]]
SHORT: Any = {"gen_length": 4, "block_length": 4}


def many(prompts: Any = PROMPTS, **options: Any) -> Iterator[DecodeOutput]:
    return decode_many(DriftingModel(), prompts, FixedSchedule(4), **SHORT | options)


def test_an_array_is_taken_as_by_decode() -> None:
    with pytest.raises(ValueError, match="attention_mask must be given"):
        many(np.array([[1, 2], [1, 0]]))
    assert [out.tokens.tolist() for out in many(np.array([1, 2]))] == [
        out.tokens.tolist() for out in many([[1, 2]])
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_rows": 0}, "num_rows must be at least 1, got 0"),
        ({"block_length": 9}, "block_length must be between 1 and gen_length=4"),
        ({"templates": [[5]]}, "one for each of 3 answers, got 1"),
        ({"templates": [[5]] * 4}, "one for each of 3 answers, got 4"),
        ({"seeds": [5]}, "seeds must hold one for each of 3 answers, got 1"),
        ({"seeds": 5}, "seeds must be integers, one for each answer, got 5"),
        ({"seeds": [5] * 3, "seed": 0}, "seed must be left out with seeds, .* got seed=0"),
        ({"seeds": iter([5]), "config": DecodeConfig(seed=4)}, "must be left out .* got seed=4"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_decoded(
    options: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        many(**options)


@pytest.mark.parametrize(
    ("options", "num_answered", "sentence"),
    [
        ({"prompts": [[1], [2], []]}, 2, r"In row 2: .*got an empty one"),
        ({"templates": iter(())}, 0, "got 0 templates and more prompts"),
        ({"templates": iter([[5]] * 2)}, 2, "got 2 templates and more prompts"),
        ({"templates": iter([[5]] * 4)}, 3, "got 3 prompts and more templates"),
        ({"seeds": iter([5] * 2)}, 2, "seeds must hold one .* got 2 seeds and more prompts"),
        ({"seeds": iter([5] * 4)}, 3, "seeds must hold one .* got 3 prompts and more seeds"),
        ({"seeds": [5, 5.5, 5]}, 1, r"In row 1: seed must be an integer, got 5\.5"),
        ({"templates": [[5], [5], [5] * 5]}, 2, r"In row 2: .* at most gen_length=4 tokens, got 5"),
    ],
)
def test_what_does_not_fit_is_refused_in_its_turn(
    options: Any, num_answered: int, sentence: str
) -> None:
    answered: list[DecodeOutput] = []
    with pytest.raises(ValueError, match=sentence):
        answered.extend(many(num_rows=1, **options))
    assert len(answered) == num_answered


@pytest.mark.parametrize("sampler", [FixedSchedule(2), FixedSchedule(2, "random")], ids=repr)
def test_with_seeds_an_answer_depends_on_its_prompt_and_seed_alone(sampler: Sampler) -> None:
    prompts, seeds = [*TINY_PROMPTS, TINY_PROMPTS[0]], [*range(5, 5 + len(TINY_PROMPTS)), 3]
    options: Any = {"gen_length": 12, "block_length": 4, "temperature": 0.8, "num_rows": 3}

    def tokens(order: Sequence[int], **others: Any) -> dict[int, list[int]]:
        chosen = [prompts[n] for n in order], (seeds[n] for n in order)
        outputs = decode_many(
            tiny("llada"), chosen[0], sampler, seeds=chosen[1], **options | others
        )
        return {n: out.tokens[0].tolist() for n, out in zip(order, outputs, strict=True)}

    everything = tokens(range(len(prompts)))
    assert everything[0] != everything[len(prompts) - 1], "the seed has no effect"
    parts = tokens(range(2, len(prompts)), num_rows=1) | tokens([1, 0])
    assert parts == everything
    alone = decode(
        tiny("llada"), prompts[:1], sampler, gen_length=12, block_length=4, temperature=0.8, seed=5
    )
    assert alone.tokens[0].tolist() == everything[0]

"""One batch of rows, and many prompts through few rows."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Unpack

import pytest
import torch
from tiny_models import TINY_PROMPTS, ending, tiny
from toys import DriftingModel, HashModel, tiny_target

from dllm_decode import (
    ARVerify,
    DecodeConfig,
    DecodeOutput,
    DraftLength,
    DualCache,
    ForwardInputs,
    NoVerifier,
    PathSearch,
    RequestQueue,
    Sampled,
    Tree,
    Verifier,
    decode,
    decode_many,
    new_decoder,
    rounds,
)
from dllm_decode.options import DecodeOptions
from samplers import ConfidenceThreshold, FixedSchedule, Sampler, Wino


def test_lengths_count_up_to_and_including_the_first_eos() -> None:
    model = HashModel()
    out = decode(model, [[1]] * 3, FixedSchedule(4), gen_length=4, block_length=4)
    tokens = torch.tensor([[22, 1, 1, 1], [1, 1, 22, 22], [1, 2, 3, 4]])
    out = replace(out, tokens=tokens, nfe=torch.tensor([2, 2, 4]))
    assert out.lengths().tolist() == [1, 3, 4]
    assert out.answers() == [[], [1, 1], [1, 2, 3, 4]]
    assert out.tokens_per_forward() == 1.0
    assert replace(out, nfe=torch.zeros(3).long()).tokens_per_forward() == 8.0


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("sampler", "verifier"),
    [
        *((sampler, NoVerifier()) for sampler in (FixedSchedule(4), ConfidenceThreshold(), Wino())),
        # A tree of a drafter's ended in a stack trace.
        *((FixedSchedule(4), ARVerify(tiny_target(), DraftLength(1, 2), drafting))
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


def test_rows_that_join_save_forwards_of_the_whole() -> None:
    model = ending("llada")
    options: Any = {"gen_length": 24, "block_length": 4, "cache": DualCache()}
    lengths = decode(model, TINY_PROMPTS, FixedSchedule(4), **options).lengths().tolist()
    assert len({-(-length // 4) for length in lengths}) > 2
    model.calls.clear()
    for start in range(0, len(TINY_PROMPTS), 2):
        decode(model, TINY_PROMPTS[start : start + 2], FixedSchedule(4), **options)
    in_batches = len(model.calls)
    model.calls.clear()
    list(decode_many(model, TINY_PROMPTS, FixedSchedule(4), num_rows=2, **options))
    assert len(model.calls) < in_batches
    assert max(len(call.tokens) for call in model.calls) == 2
    # A row that has just joined is open where the other is already further.
    depths = [call.positions[:, -1] for call in model.calls if len(call.tokens) == 2]
    assert any(len(set(ends.tolist())) == 2 for ends in depths)


def test_prompts_are_taken_when_a_place_is_free_and_answers_given_when_it_is_their_turn() -> None:
    taken: list[int] = []

    def source() -> Iterator[list[int]]:
        for index in range(50):
            taken.append(index)
            yield [index % 20 + 1]

    outputs = decode_many(
        DriftingModel(), source(), FixedSchedule(4), num_rows=4, gen_length=4, block_length=4
    )
    assert not taken
    next(outputs)
    assert len(taken) == 4
    assert sum(1 for _ in outputs) == 49


def test_the_settings_are_those_of_decode() -> None:
    one = inspect.signature(decode).parameters
    many = dict(inspect.signature(decode_many).parameters)
    assert many.pop("num_rows").kind is inspect.Parameter.KEYWORD_ONLY
    assert list(many) == list(one)
    assert [p.default for p in many.values()] == [p.default for p in one.values()]
    taken = {"prompts": "", "templates": ""}
    # By their text: each mention of a tensor's shape is a type of its own.
    assert {n: str(p.annotation) for n, p in many.items()} | taken == {
        n: str(p.annotation) for n, p in one.items()
    } | taken
    assert many["options"].annotation == Unpack[DecodeOptions]


def test_with_a_reserve_keys_and_values_are_allocated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of growing length in two rows; without a reserve they are copied."""
    decoder = new_decoder(
        tiny("sdar"), FixedSchedule(2), cache=DualCache(),
        config=DecodeConfig(gen_length=8, stop_at_eos=False),
    )  # fmt: skip
    prompts = [[5] * length for length in (3, 4, 9, 17, 30)]

    def tokens(**options: int) -> list[list[int]]:
        queue = RequestQueue(decoder.request(prompt, n) for n, prompt in enumerate(prompts))
        ended = [one for listed in rounds(decoder, queue, 2, **options) for one in listed]
        return [one.output.tokens[0].tolist() for one in sorted(ended, key=lambda e: e.request)]

    expected = tokens()

    def refuse(*_: object) -> None:
        raise AssertionError("Keys and values were copied.")

    monkeypatch.setattr("dllm_decode.models.base.pad", refuse)
    assert tokens(reserve=40) == expected
    with pytest.raises(AssertionError, match="were copied"):
        tokens()


PROMPTS = [[1], [2], [3]]
SHORT: Any = {"gen_length": 4, "block_length": 4}


def many(prompts: Any = PROMPTS, **options: Any) -> Iterator[DecodeOutput]:
    return decode_many(DriftingModel(), prompts, FixedSchedule(4), **SHORT | options)


def test_templates_are_taken_in_step_with_the_prompts() -> None:
    given = ([index % 20 + 1, DriftingModel().mask_id] for index in count())
    outputs = many(([index % 20 + 1] for index in count()), num_rows=3, templates=given)
    for index in range(10):
        assert int(next(outputs).tokens[0, 0]) == index % 20 + 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_rows": 0}, "num_rows must be at least 1, got 0"),
        ({"block_length": 9}, "block_length must be between 1 and gen_length=4"),
        ({"templates": [[5]]}, "one answer per prompt, 3, got 1"),
        ({"templates": [[5]] * 4}, "one answer per prompt, 3, got 4"),
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


def test_an_empty_collection_leaves_everything_open() -> None:
    plain, without = list(many()), list(many(templates=[]))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, without, strict=True))

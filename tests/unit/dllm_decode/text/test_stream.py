"""The pieces of a streamed answer make up the whole answer."""

from typing import Any

import pytest
from served import QUESTIONS

from dllm_decode import DualCache, SelfVerify, generate, load_model, stream
from samplers import ConfidenceThreshold, FixedSchedule, Wino

QUESTION = QUESTIONS[0]


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": ConfidenceThreshold(0.9999), "block_length": 8},
        # Settled tokens may change until their block is finished.
        {"sampler": Wino(), "block_length": 8},
        {"sampler": FixedSchedule(8), "verifier": SelfVerify(3), "cache": DualCache()},
        {"stop_strings": "giving some", "block_length": 8},
        {"max_new_tokens": 64, "block_length": 8, "temperature": 0.7, "seed": 3},
    ],
    ids=str,
)
def test_all_pieces_together_are_the_text_of_generate(options: dict[str, Any]) -> None:
    model, tokenizer = load_model("mini", device="cpu")
    options = {"max_new_tokens": 64, **options}
    pieces = list(stream(model, tokenizer, QUESTION, **options))
    assert "".join(pieces) == generate(model, tokenizer, QUESTION, **options).texts[0]
    assert len(pieces) > 1
    assert all(pieces)


def test_an_answer_that_nobody_reads_on_is_not_decoded_further() -> None:
    model, tokenizer = load_model("mini", device="cpu")
    calls, predict = [], model.predict
    model.predict = lambda inputs: calls.append(1) or predict(inputs)
    pieces = stream(model, tokenizer, QUESTION, FixedSchedule(8), gen_length=32, block_length=8)
    assert not calls
    next(pieces)
    assert 0 < len(calls) < 9


def test_several_inputs_are_refused_at_once() -> None:
    model, tokenizer = load_model("mini", device="cpu")
    with pytest.raises(ValueError, match="stream must be given one input, got 2"):
        stream(model, tokenizer, [QUESTION, QUESTION])

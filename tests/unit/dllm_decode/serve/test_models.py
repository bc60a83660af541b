"""Models, caches and verifiers under the server: answers are those of `decode_many`."""

from typing import Any

import pytest
from served import Told, chat_of, engine_of

from dllm_decode import (
    CachePolicy,
    DecodeConfig,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
    decode_many,
    load_model,
    new_decoder,
)
from dllm_decode.serve.jobs import Finished
from dllm_decode.serve.limits import Limits
from dllm_decode.texts import prompt_ids
from eval.tasks import Ledgers, WordProblems
from samplers import ConfidenceThreshold

LIMITS = Limits(num_rows=3, max_tokens=128, gen_length=64, max_length=512, max_columns=4096)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "cache", "temperature"),
    [
        ("mini", DualCache(), 1.5),
        ("mini-long", FreeCache(), 0.0),
        pytest.param("mini", NoCache(), 0.0, marks=SLOW),
        pytest.param("mini", NoCache(), 1.5, marks=SLOW),
        pytest.param("mini-long", FreeCache(), 1.5, marks=SLOW),
        pytest.param("mini-long", PrefixCache(), 0.0, marks=SLOW),
        pytest.param("mini-long", PrefixCache(), 1.5, marks=SLOW),
    ],
)
def test_rows_that_come_one_by_one_answer_as_decode_many(
    name: str, cache: CachePolicy, temperature: float
) -> None:
    model, tokenizer = load_model(name)
    task: Any = Ledgers() if name == "mini-long" else WordProblems()
    examples = task.examples("test", 5, 0)
    prompts = prompt_ids(tokenizer, [chat_of(example.prompt) for example in examples])
    lengths = [48 + 16 * (number % 3) for number in range(5)]
    config = DecodeConfig(gen_length=128, temperature=temperature)
    decoder = new_decoder(model, ConfidenceThreshold(0.9), cache=cache, config=config)
    jobs = [
        Told(decoder, list(prompt), gen_length=length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    with engine_of(decoder, limits=LIMITS) as (_, (lane,)):
        for told in jobs:
            lane.submit([told.job])
        events = [told.next() for told in jobs]
    for event, prompt, length in zip(events, prompts, lengths, strict=True):
        assert isinstance(event, Finished)
        (alone,) = decode_many(
            model, [prompt], ConfidenceThreshold(0.9), cache=cache, gen_length=length,
            temperature=temperature,
        )  # fmt: skip
        assert event.output.answers() == alone.answers()
        assert event.output.nfe.tolist() == alone.nfe.tolist()

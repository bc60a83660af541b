"""Lanes: jobs join, are told how they go, and leave."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
import torch
from served import QUESTIONS, Told, chat_of, decoder_of, runner_of, wait_until
from tiny_models import Counted
from torch import Tensor

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
from dllm_decode.serve.jobs import Failed, Finished, Grown
from dllm_decode.serve.lanes import FullError, Lane
from dllm_decode.serve.limits import Limits
from dllm_decode.text.tokenization import prompt_ids
from eval.tasks import Ledgers, WordProblems
from samplers import ConfidenceThreshold, Decision, FixedSchedule, JointThreshold, Sampler
from samplers.view import View

LIMITS = Limits(num_rows=4, max_tokens=128, gen_length=64, max_length=512)
MODEL, TOKENIZER = load_model("mini")
PROMPTS = prompt_ids(TOKENIZER, [chat_of(text) for text in QUESTIONS])


@pytest.fixture
def lane() -> Iterator[Lane]:
    with runner_of(decoder_of(MODEL), limits=LIMITS) as (_, (opened,)):
        yield opened


def text_of(event: object) -> str:
    assert isinstance(event, Finished), event
    return TOKENIZER.decode(event.output.answers()[0])


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("name", "cache", "temperature"),
    [
        ("mini", DualCache(), 1.5), ("mini", NoCache(), 0.0), ("mini-long", PrefixCache(), 1.5),
        ("mini-long", FreeCache(), 0.0),
    ],
)  # fmt: skip
def test_answers_of_a_batch_are_those_of_each_prompt_alone(
    name: str, cache: CachePolicy, temperature: float
) -> None:
    """Each request has its own length, seed and temperature."""
    model, tokenizer = load_model(name)
    task: Any = Ledgers() if name == "mini-long" else WordProblems()
    examples = task.examples("test", 5, 0)
    prompts = prompt_ids(tokenizer, [chat_of(example.prompt) for example in examples])
    options = [
        {"gen_length": 48 + 16 * (n % 3), "temperature": temperature * (n % 3), "seed": n % 2}
        for n in range(5)
    ]
    config, sampler = DecodeConfig(gen_length=128), ConfidenceThreshold(0.9)
    decoder = new_decoder(model, sampler, cache=cache, config=config)
    jobs = [
        Told(decoder, list(prompt), **row_options)
        for prompt, row_options in zip(prompts, options, strict=True)
    ]
    with runner_of(decoder, limits=replace(LIMITS, num_rows=3)) as (_, (lane,)):
        for told in jobs:
            lane.submit([told.job])
        events = [told.next() for told in jobs]
    for event, prompt, row_options in zip(events, prompts, options, strict=True):
        assert isinstance(event, Finished)
        (alone,) = decode_many(model, [prompt], sampler, cache=cache, **row_options)
        assert event.output.answers() == alone.answers()
        assert event.output.nfe.tolist() == alone.nfe.tolist()


@pytest.mark.parametrize("sampler", [ConfidenceThreshold(0.9), JointThreshold()])
def test_what_a_stream_was_told_never_changes(sampler: Any) -> None:
    with runner_of(decoder_of(MODEL, sampler, block_length=8), limits=LIMITS) as (_, (lane,)):
        told = Told(lane.decoder, PROMPTS[0], gen_length=64, shown="prefix")
        lane.submit([told.job])
        prefixes = []
        while isinstance(event := told.next(), Grown):
            prefixes.append(event.tokens)
        assert isinstance(event, Finished)
        answer = event.output.answers()[0]
        assert all(answer[: len(prefix)] == prefix for prefix in prefixes)
        assert sampler != ConfidenceThreshold(0.9) or len(prefixes) > 2


def test_a_job_that_is_cancelled_gives_its_row_back_and_says_nothing(lane: Lane) -> None:
    long = [Told(lane.decoder, PROMPTS[0], gen_length=128, stop_at_eos=False) for _ in range(6)]
    lane.submit([told.job for told in long])
    wait_until(lambda: lane.num_running == 4)
    for told in long:
        lane.cancel(told.job)
    wait_until(lambda: lane.num_running == 0)
    assert lane.num_waiting == 0
    for _ in range(2):
        after = Told(lane.decoder, PROMPTS[1])
        lane.submit([after.job])
        text_of(after.next())
        # The job has ended, so that cancelling it does nothing.
        lane.cancel(after.job)
    assert all(told.is_silent(0.02) for told in long)


def test_too_many_waiting_jobs_are_refused_all_or_none() -> None:
    limits = Limits(num_rows=1, max_waiting=2, max_tokens=128, gen_length=64)
    with runner_of(decoder_of(MODEL), limits=limits) as (runner, (lane,)):
        jobs = [Told(lane.decoder, PROMPTS[0], gen_length=16).job for _ in range(3)]
        with pytest.raises(FullError):
            lane.submit(jobs)
        assert lane.num_waiting == 0
        lane.submit(jobs[:2])
        runner.close()
        with pytest.raises(FullError):
            lane.submit(jobs[2:])


def run_out_of_memory(found: Tensor) -> Tensor:
    raise RuntimeError("out of memory")


def failing(change: Callable[[Tensor], Tensor], *forwards: int) -> Any:
    """Returns a model whose logits of some forwards are changed."""
    model, _ = load_model("mini")
    predict, number = model.predict, count(1)
    # Without a cache all rows are in one forward, in the order of the requests.
    model.predict = lambda inputs: (
        change(predict(inputs)) if next(number) in forwards else predict(inputs)
    )
    return model


def test_a_fault_of_the_model_ends_what_runs_and_the_lane_goes_on() -> None:
    model = failing(run_out_of_memory, 3)
    with runner_of(decoder_of(model, FixedSchedule(8)), limits=LIMITS) as (runner, (lane,)):
        jobs = [Told(lane.decoder, prompt, gen_length=64) for prompt in PROMPTS]
        lane.submit([told.job for told in jobs])
        events = [told.next() for told in jobs]
        failed = [event for event in events if isinstance(event, Failed)]
        assert len(failed) == LIMITS.num_rows
        assert {event.status for event in failed} == {500}
        assert "memory" not in failed[0].message
        # Two requests waited, and were answered afterwards.
        assert sum(isinstance(event, Finished) for event in events) == 2
        assert not runner.is_broken


@pytest.mark.parametrize("change", [run_out_of_memory, lambda logits: logits + torch.nan])
def test_a_model_that_always_fails_is_said_to_be_broken(change: Any) -> None:
    """Rows that ended with an error counted as answers."""
    model = failing(change, *range(9))
    with runner_of(decoder_of(model), limits=LIMITS) as (runner, (lane,)):
        for _ in range(3):
            told = Told(lane.decoder, PROMPTS[0])
            lane.submit([told.job])
            assert isinstance(told.next(), Failed)
        assert runner.is_broken


def test_lanes_take_turns_round_by_round() -> None:
    decoders = [decoder_of(MODEL, FixedSchedule(8)) for _ in range(3)]
    order: list[int] = []
    jobs = [
        Told(decoder, PROMPTS[number], gen_length=8, stop_at_eos=False)
        for number, decoder in enumerate(decoders)
    ]
    for number, told in enumerate(jobs):
        told.job.watch = lambda event, row, step, number=number: order.append(number)
    with runner_of(*decoders, limits=LIMITS) as (runner, lanes):
        with runner._changed:
            for told, lane in zip(jobs, lanes, strict=True):
                lane.submit([told.job])
        assert all(isinstance(told.next(), Finished) for told in jobs)
    assert order == [0, 1, 2] * 8


def test_a_lane_keeps_its_memory_until_another_lane_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request after a pause waited for a cache of `max_length` for all rows to be zeroed."""
    # A cache without room for a longer row would be copied.
    monkeypatch.setattr("dllm_decode.core.model.pad", None)
    model = Counted(MODEL)
    decoders = [new_decoder(model, FixedSchedule(4), cache=PrefixCache()) for _ in range(2)]
    with runner_of(*decoders, limits=LIMITS) as (_, (lane, other_lane)):

        def answer(lane: Lane, gen_length: int) -> None:
            told = Told(lane.decoder, PROMPTS[0], gen_length=gen_length)
            lane.submit([told.job])
            assert isinstance(told.next(), Finished)
            wait_until(lambda: lane.num_running == 0)

        for gen_length in (32, 64, 32):
            answer(lane, gen_length)
        assert len(model.memories) == 1
        # Short rows do not attend to the slots of a longer one that has left.
        first, *_, last = (call.kv_cache.num_slots for call in model.calls)
        assert last == first
        answer(other_lane, 32)
        answer(lane, 32)
        assert len(model.memories) == 3


def test_a_client_of_many_requests_lets_others_have_their_turn() -> None:
    """All 60 requests of a client were answered before the single one of a later client."""
    limits = replace(LIMITS, num_rows=2)
    with runner_of(decoder_of(MODEL, FixedSchedule(8)), limits=limits) as (runner, (lane,)):
        done: list[str] = []
        many = [Told(lane.decoder, PROMPTS[0], gen_length=32, client="many") for _ in range(8)]
        few = [Told(lane.decoder, PROMPTS[1], gen_length=32, client="few") for _ in range(2)]
        for told in (*many, *few):
            told.job.emit = lambda event, told=told: done.append(told.job.client)
        with runner._changed:
            lane.submit([told.job for told in many])
            lane.submit([told.job for told in few])
        wait_until(lambda: len(done) == 10)
    assert set(done[:2]) == {"many", "few"}
    assert done.index("few", done.index("few") + 1) < 4
    assert done[-4:] == ["many"] * 4


def test_closing_a_lane_ends_its_jobs_with_503() -> None:
    with runner_of(decoder_of(MODEL, FixedSchedule(32)), limits=LIMITS) as (runner, (lane,)):
        jobs = [Told(lane.decoder, PROMPTS[0], gen_length=128, stop_at_eos=False) for _ in range(6)]
        lane.submit([told.job for told in jobs])
        wait_until(lambda: lane.num_running == 4)
        runner.close()
        events = [told.next() for told in jobs]
        assert all(isinstance(event, Failed) and event.status == 503 for event in events)
        assert lane.num_running == 0


def test_an_idle_lane_does_not_use_the_processor(lane: Lane) -> None:
    told = Told(lane.decoder, PROMPTS[0])
    lane.submit([told.job])
    text_of(told.next())
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.1


@dataclass(frozen=True)
class Faulty(Sampler[None]):
    def step(self, view: View, state: None) -> tuple[Decision, None]:
        raise KeyError("a mistake of its author")


def test_an_answer_of_any_lane_shows_that_the_server_works() -> None:
    """Three faults of one `--allow-sampler` made the server unwell for ever."""
    decoders = decoder_of(MODEL), decoder_of(MODEL, Faulty())
    with runner_of(*decoders, limits=LIMITS) as (runner, (default, faulty)):
        for _ in range(3):
            told = Told(faulty.decoder, PROMPTS[0])
            faulty.submit([told.job])
            failed = told.next()
            assert isinstance(failed, Failed)
            # The fault is in the sampler, not in the model.
            assert failed.message.startswith("The decode failed.")
        assert runner.is_broken
        told = Told(default.decoder, PROMPTS[0])
        default.submit([told.job])
        text_of(told.next())
        assert not runner.is_broken

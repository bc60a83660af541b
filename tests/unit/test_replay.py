"""Recordings are played with the inputs of the present forward; CUDA is stood in for by Python."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from spied import FAMILIES, MODELS, tiny

from dllm_decode import (
    DelayedCache,
    DualCache,
    FreeCache,
    Inputs,
    NoCache,
    PrefixCache,
    SelfVerify,
    decode,
    decode_many,
    load_model,
)
from dllm_decode.models.replay import Replay
from samplers import ConfidenceThreshold, FixedSchedule

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]


class Recorder:
    """Records a forward as CUDA would: later plays see the recorded tensors and nothing else."""

    def __init__(self) -> None:
        self.num_recorded = self.num_played = 0

    def __call__(self, run: Any, inputs: Inputs) -> Any:
        self.num_recorded += 1
        logits = run(inputs)

        def play() -> torch.Tensor:
            self.num_played += 1
            # Into the same tensor, as a graph does.
            return logits.copy_(run(inputs))

        return play


class Replayed:
    """A mask predictor whose forwards are played again."""

    def __init__(self, family: str, **options: Any) -> None:
        self.model = tiny(family)
        self.recorder = Recorder()
        self.predict = Replay(self.model.predict, record=self.recorder, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "cache", [NoCache(), PrefixCache(), DualCache(), FreeCache(), DelayedCache()], ids=repr
)
def test_forwards_that_are_played_again_give_the_same_answers(family: str, cache: Any) -> None:
    replayed = Replayed(family)
    for sampler, verifier in (
        (FixedSchedule(4), {}), (ConfidenceThreshold(0.4), {}),
        (FixedSchedule(8), {"verifier": SelfVerify(3, "tree")}),
    ):  # fmt: skip
        if verifier and isinstance(cache, DelayedCache):
            continue
        options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, **verifier}
        plain = decode(replayed.model, PROMPTS, sampler, **options)
        out = decode(replayed, PROMPTS, sampler, **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.nfe, out.nfe)
    assert replayed.recorder.num_played >= replayed.recorder.num_recorded > 0


def test_one_recording_serves_every_block() -> None:
    replayed = Replayed("llada")
    options: Any = {"gen_length": 64, "block_length": 8, "cache": DualCache()}
    out = decode(replayed, PROMPTS, FixedSchedule(8), stop_at_eos=False, **options)
    # One of all columns and one of a block.
    assert replayed.recorder.num_recorded == 2
    assert replayed.recorder.num_played == out.forwards - 2


def test_rows_that_come_and_go_are_served() -> None:
    replayed = Replayed("llada")
    options: Any = {"gen_length": 16, "block_length": 8, "cache": DualCache()}
    plain = decode(replayed.model, PROMPTS * 3, FixedSchedule(8), **options)
    outputs = decode_many(replayed, PROMPTS * 3, FixedSchedule(8), num_rows=2, **options)
    assert torch.equal(plain.tokens, torch.cat([out.tokens for out in outputs]))
    assert replayed.recorder.num_played


def test_a_recording_serves_callers_in_and_out_of_inference_mode() -> None:
    model = tiny("llada")
    replay = Replay(model.predict, record=Recorder())
    columns = torch.arange(4)[None]
    inputs = Inputs(tokens=torch.tensor([[5, 6, 7, 8]]), positions=columns, wanted=columns)
    for inference in (False, True, False, True, False):
        with torch.inference_mode(inference):
            logits = replay(inputs)
            logits.add_(1.0)
    assert replay.record.num_played == 4


def test_moved_weights_are_recorded_anew() -> None:
    model = load_model("mini")[0]
    before = model._replay
    model.to(torch.float64)
    assert model._replay is not before


def test_what_comes_out_is_not_overwritten_by_the_next_play() -> None:
    model = tiny("llada")
    replay = Replay(model.predict, record=Recorder())
    columns = torch.arange(4)[None]
    inputs = Inputs(tokens=torch.tensor([[5, 6, 7, 8]]), positions=columns, wanted=columns)
    found = [replay(replace(inputs, tokens=torch.tensor([[5, 6, 7, token]]))) for token in range(6)]
    for token, logits in enumerate(found):
        wanted = model.predict(replace(inputs, tokens=torch.tensor([[5, 6, 7, token]])))
        torch.testing.assert_close(logits, wanted, rtol=0, atol=0)


def test_recordings_that_are_not_used_are_forgotten() -> None:
    replayed = Replayed("llada", max_recordings=2)
    for length in (4, 5, 6, 4, 5, 6):
        decode(
            replayed, [[1] * length], FixedSchedule(8), gen_length=8, block_length=8,
            stop_at_eos=False,
        )  # fmt: skip
    assert len(replayed.predict._recordings) == 2
    assert replayed.recorder.num_recorded == 6


@pytest.mark.gpu
@pytest.mark.parametrize("cache", [NoCache(), DualCache(), FreeCache(), DelayedCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_change_no_token_on_cuda(family: str, cache: Any) -> None:
    model = load_model(MODELS / family, device="cuda", dtype=torch.float32)[0]
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    for _ in range(3):
        model.graphs = False
        eager = decode(model, PROMPTS, FixedSchedule(8), **options)
        model.graphs = True
        played = decode(model, PROMPTS, FixedSchedule(8), **options)
        assert torch.equal(eager.tokens, played.tokens)
    assert model._replay._recordings

"""Runs of the official ASSD code on a tiny XLNet: laws, drafts, verdicts, tokens and forwards.

The recorded uniform numbers take the place of the keyed noise. The authors take [MASK] out of their
laws without normalising; the recorded laws are normalised. Runs of features that are not offered
are left out: drafts from bigrams, orders other than ascending, and faults of the official code.
Three greedy runs and one with a single draft, which that code cannot do, are of a reference.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import load_xlnet
from torch import Tensor

from dllm_decode import DecodeConfig, new_decoder, run
from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.verify import AnySubsetVerify, acceptance, any_subset
from samplers import ConfidenceThreshold
from samplers.logits import statistics

DATA = Path(__file__).parent / "data" / "assd"
CONTENT: dict[str, Any] = json.loads((DATA / "runs.json").read_text(encoding="utf-8"))
RUNS = {run["name"]: run for run in CONTENT["runs"]}


@cache
def rejections() -> int:
    rounds = [entry for run in RUNS.values() for entry in run["rounds"]]
    return sum(entry["accepted"] < len(entry["positions"]) for entry in rounds)


def test_the_recordings_have_what_they_are_for() -> None:
    assert len(RUNS) == 22
    assert rejections() > 20
    assert {run["temperature"] for run in RUNS.values()} == {0.0, 0.5, 0.7, 0.8, 1.0, 1.5}


class Replayed:
    """Draws by the recorded numbers, and compares each round's distributions with the recording."""

    def __init__(self, rounds: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self.judged = iter(rounds), 0
        self.now = next(self.rounds)
        self.own_accept = any_subset.accept_by_ratio_without_bonus
        monkeypatch.setattr(statistics, "draw", self.draft)
        monkeypatch.setattr(acceptance, "draw", self.replacement)
        monkeypatch.setattr(acceptance, "uniform", self.limits)
        monkeypatch.setattr(any_subset, "accept_by_ratio_without_bonus", self.accept)

    def draft(self, logits: Tensor, temperature: float, keys: Tensor) -> Tensor:
        distributions = (logits / temperature).softmax(-1)[0]
        drawn = [choose(*pair) for pair in zip(distributions, self.now["u_draft"], strict=True)]
        return torch.tensor([drawn])

    def limits(self, keys: Tensor) -> Tensor:
        # A round of one draft has no number: the first draft is not tested.
        return torch.tensor([self.now["u_accept"] or [0.999] * keys.shape[1]]).double()

    def replacement(self, logits: Tensor, temperature: float, keys: Tensor) -> Tensor:
        uniform = self.now["u_residual"]
        return torch.tensor([[choose(logits[0, 0].exp(), 0.5 if uniform is None else uniform)]])

    def accept(self, draft: Any, log_probs: Tensor, keys: Tensor) -> Any:
        now = self.now
        assert draft.tokens[0].tolist() == now["draft"]
        for ours, theirs in ((draft.logits[0], now["q"]), (log_probs[0], now["p"])):
            if theirs is not None:
                recorded = torch.tensor(theirs, dtype=torch.float64)
                torch.testing.assert_close(ours.exp(), recorded, rtol=0.0, atol=1e-13)
        verdict = self.own_accept(draft, log_probs, keys)
        assert int(verdict.accepted) == now["accepted"]
        self.judged += now["p"] is not None
        self.now = next(self.rounds, {})
        return verdict


def choose(weights: Tensor, uniform: float) -> int:
    """Returns the first token up to which the weights have more than this share of their sum."""
    return int((weights.cumsum(-1) / weights.sum() <= uniform).sum())


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_the_official_code_are_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = RUNS[name]
    replayed = Replayed(recorded["rounds"], monkeypatch)
    canvas = recorded["prompt"]
    config = DecodeConfig(
        gen_length=len(canvas), temperature=recorded["temperature"], stop_at_eos=False
    )
    decoder = new_decoder(
        load_xlnet("tiny_xlnet", mask_id=6), ConfidenceThreshold(0.9),
        verifier=AnySubsetVerify(recorded["k"]), config=config,
    )  # fmt: skip
    # `decoder.request` requires a prompt; here given tokens come after open positions too.
    request = Request(index=0, prompt=(), config=config, template=canvas)
    (ended,) = run(decoder, RequestQueue([request]), 1)
    assert ended.error == ""
    assert ended.output.tokens[0].tolist() == recorded["result"]
    assert ended.output.nfe.item() == recorded["forwards"]
    assert not replayed.now
    assert replayed.judged == sum(entry["p"] is not None for entry in recorded["rounds"])


@pytest.mark.parametrize("number", range(len(CONTENT["joint_vectors"])))
def test_one_forward_has_the_conditionals_of_any_order(number: int) -> None:
    vector, model = CONTENT["joint_vectors"][number], load_xlnet("tiny_xlnet", mask_id=6)
    ranks = torch.tensor(vector["sigma"])
    prompt = ranks < vector["start"]
    attend = (ranks < ranks[:, None]) | (prompt & prompt[:, None])
    wanted = torch.tensor([vector["asked"]])
    logits = model.predict(
        ForwardInputs(
            tokens=torch.tensor([vector["tokens"]]), positions=torch.arange(len(ranks))[None],
            wanted=wanted, attend=attend[None],
        )
    )  # fmt: skip
    logits[..., model.mask_id] = -torch.inf
    logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(vector["tokens"])[wanted][..., None])
    expected = torch.tensor(vector["log_probabilities"], dtype=torch.float64)
    torch.testing.assert_close(logprobs.flatten(), expected, rtol=0.0, atol=1e-13)
    assert logprobs.sum().item() == pytest.approx(vector["joint"], abs=1e-12)

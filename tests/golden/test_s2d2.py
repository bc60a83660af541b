"""Every round of the official S2D2 code on tiny checkpoints: the block before it, and the verdicts.

The recorded acceptance draws are the keyed noise of this package (seed 0, request 0), so that
nothing has to be injected. Runs with the authors' AR-like caching are among them.
"""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import recorded_model

from dllm_decode import StepEvent, new_decoder, run
from dllm_decode.caches import CachePolicy, DualCache, FreeCache, NoCache, PrefixCache
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.ended import EndedRequest
from dllm_decode.verify import S2D2, MinimumSpan, ScoreThreshold
from samplers import ConfidenceThreshold, JointThreshold, Sampler

DATA = Path(__file__).parent / "data" / "s2d2"
NUM_RUNS = {"s2d2_sdar": 96, "s2d2_sdar_t1": 96, "s2d2_llada2": 36}
ESTIMATES: dict[str, Any] = {"soft_entropy_negexp": "entropy", "hard_margin_threshold": "margin"}


@cache
def content_of(method: str) -> dict[str, Any]:
    return json.loads((DATA / f"{method}.json").read_text(encoding="utf-8"))


def verifier_of(setting: dict[str, Any]) -> S2D2:
    attend: Any = "causal" if setting.get("cache_ver") else "blocks"
    if setting["do_verify_policy"] == "mask_span_length":
        return S2D2(MinimumSpan(setting["min_ssd_span_length"]), attend)
    router = ScoreThreshold(
        setting["do_verify_score_threshold"],
        penalise=setting["do_verify_score_type"].removeprefix("difference_"),
        penalty=setting["score_penalty_coef"],
        estimate=ESTIMATES[setting["token_acceptance_estimator"]],
        confidence=setting.get("confidence_threshold", setting.get("threshold")),
    )
    return S2D2(router, attend)


def sampler_of(setting: dict[str, Any]) -> Sampler:
    if "editing_threshold" in setting:
        return JointThreshold(setting["threshold"], setting["editing_threshold"], 16)
    return ConfidenceThreshold(setting["confidence_threshold"])


def decoded(
    method: str, runs: list[dict[str, Any]], cache: CachePolicy, dtype: torch.dtype
) -> tuple[dict[int, list[list[int]]], dict[int, EndedRequest]]:
    """Returns the open block before each round, and the answers, of runs that share three rows."""
    setting = runs[0]["setting"]
    config = DecodeConfig(
        gen_length=max(entry["gen_length"] for entry in runs),
        temperature=float(method.endswith("t1")),
        stop_at_eos=False,
    )
    family = content_of(method)["family"]
    model = recorded_model(family, setting["block_length"], dtype=dtype)
    decoder = new_decoder(
        model, sampler_of(setting), cache=cache, verifier=verifier_of(setting), config=config
    )
    queue = RequestQueue()
    for index, entry in enumerate(runs):
        queue.put(
            decoder.request(entry["prompt"], index, noise_index=0, gen_length=entry["gen_length"])
        )
    blocks: dict[int, list[list[int]]] = defaultdict(list)

    def watch(event: StepEvent) -> None:
        for n, row in enumerate(event.rows):
            block = event.before.tokens[n, slice(*row.opening.block)].tolist()
            blocks[row.request.index].append(block)

    answers = {answer.index: answer for answer in run(decoder, queue, 3, [watch])}
    return blocks, answers


# Part of the settings by default, and all of them in the slow run.
CASES = [
    *((method, torch.float64, FreeCache(), 8) for method in NUM_RUNS),
    *(
        pytest.param(method, dtype, cache, 1, marks=pytest.mark.slow)
        for method in NUM_RUNS
        for dtype in (torch.float64, torch.float32)
        for cache in (FreeCache(), NoCache(), PrefixCache(), DualCache())
    ),
]


@pytest.mark.parametrize(("method", "dtype", "cache", "every"), CASES, ids=repr)
def test_every_round_of_the_official_code_is_reproduced(
    method: str, dtype: torch.dtype, cache: CachePolicy, every: int
) -> None:
    settings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for recorded in content_of(method)["runs"]:
        settings[json.dumps(recorded["setting"])].append(recorded)
    assert sum(map(len, settings.values())) == NUM_RUNS[method]
    different, num_verified = set(), 0
    for runs in list(settings.values())[::every]:
        blocks, answers = decoded(method, runs, cache, dtype)
        for index, recorded in enumerate(runs):
            answer, start = answers[index], len(recorded["prompt"])
            assert not answer.error
            expected = recorded["tokens"][start : start + recorded["gen_length"]]
            if blocks[index] != recorded["drafts"] or answer.output.tokens[0].tolist() != expected:
                different.add(recorded["id"])
                continue
            num_verified += len(recorded["verdicts"])
            drafted = sum(number for _, number in recorded["verdicts"])
            assert answer.output.nfe.tolist() == [
                len(recorded["drafts"]) + len(recorded["verdicts"])
            ]
            assert answer.output.drafted.tolist() == [drafted]
            assert 0 <= answer.output.accepted.item() <= drafted
    assert num_verified
    # No run has a near tie that float32 decides otherwise.
    assert not different

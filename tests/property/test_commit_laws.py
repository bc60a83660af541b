"""Recorded steps and log-probabilities equal those recomputed from the canvas before each step."""

import math
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, tiny
from torch import Tensor
from toys import DriftingModel, HashModel, logits_of, tiny_llama, tiny_target

from dllm_decode import DecodeConfig, DecodeOutput, RequestQueue, StepEvent
from dllm_decode.caches import NoCache, PrefixCache
from dllm_decode.engine.decoding import decode, new_decoder
from dllm_decode.engine.loop import run
from dllm_decode.verify import (
    ARVerify,
    NoVerifier,
    PathSearch,
    Pool,
    Recycling,
    Sampled,
    SelfVerify,
    Tree,
)
from samplers import T2M, ConfidenceThreshold, FixedSchedule, JointThreshold, Sampler, Wino
from samplers.logits.truncation import Truncation

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12]]
# Each row has its own temperature and truncation.
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "gen_length": 9},
    {"temperature": 1.5, "top_p": 0.8, "seed": 5},
    {"temperature": 0.6, "top_k": 3, "top_p": 0.9},
]


class Recomputed:
    """Recomputes the commits of each request, without the engine, from the canvases."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.steps: dict[int, int] = {}
        self.found: dict[int, dict[int, tuple[int, float, float]]] = {}

    def __call__(self, event: StepEvent) -> None:
        for n, row in enumerate(event.rows):
            request, start = row.request, row.prompt_length
            step = self.steps.setdefault(request.index, 0)
            self.steps[request.index] += 1
            before, after = event.before.tokens[n], event.after.tokens[n]
            logits = self.model.logits_of(before[None, : row.end])[0]
            logits[:, self.model.mask_id] = -torch.inf
            commits = self.found.setdefault(request.index, {})
            for column in range(start, row.answer_end):
                token = int(after[column])
                if token != before[column]:
                    commits[column - start] = (step, *logs(logits[column], request.config, token))


def logs(logits: Tensor, config: DecodeConfig, token: int) -> tuple[float, float]:
    """Returns a token's log-probability in the law that options draw from, and in the model's."""
    law = Truncation(config.temperature, config.top_p, config.top_k)(logits)
    drawn, plain = (float(part.log_softmax(-1)[token]) for part in (law, logits))
    return drawn, plain


def record(
    model: Any, sampler: Sampler, *observers: Any, num_rows: int = 2, **parts: Any
) -> dict[int, DecodeOutput]:
    """Decodes the prompts, each with its own options, and records commits."""
    config = DecodeConfig(gen_length=12, block_length=4)
    decoder = new_decoder(model, sampler, config=config, return_logprobs=True, **parts)
    requests = [
        decoder.request(prompt, index, **options)
        for index, (prompt, options) in enumerate(zip(PROMPTS, OPTIONS, strict=True))
    ]
    answers = run(decoder, RequestQueue(requests), num_rows, observers)
    return {answer.index: answer.output for answer in answers}


EDITING = (JointThreshold(0.2, 0.1), T2M(0.2, tau=0.1), Wino(0.4, 0.3))


@pytest.mark.parametrize(
    ("sampler", "verifier"),
    [
        *((sampler, NoVerifier()) for sampler in (FixedSchedule(2), *EDITING)),
        (FixedSchedule(4), SelfVerify(3)),
        (ConfidenceThreshold(0.2), SelfVerify(3, "tree")),
    ],
    ids=repr,
)
def test_log_probabilities_are_those_of_the_canvas_before_the_step(
    sampler: Sampler, verifier: Any
) -> None:
    model = DriftingModel()
    recomputed = Recomputed(model)
    outputs = record(model, sampler, recomputed, verifier=verifier)
    num_commits = 0
    for request, output in outputs.items():
        steps, drawn, plain = (part[0].tolist() for part in output.commits)
        tokens = output.tokens[0].tolist()
        for position, step in enumerate(steps):
            if step < 0:
                # A fill after an EOS.
                assert tokens[position] == model.eos_ids[0]
                assert model.eos_ids[0] in tokens[:position]
                assert math.isnan(drawn[position])
                assert math.isnan(plain[position])
                continue
            num_commits += 1
            expected = recomputed.found[request][position]
            assert (step, drawn[position], plain[position]) == pytest.approx(expected, abs=1e-9)
    assert num_commits > 20


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_caches_nor_verifiers_nor_joins_change_what_is_recorded(family: str) -> None:
    model, sampler = tiny(family), ConfidenceThreshold(0.3)
    cache = PrefixCache() if model.causal_block_length else NoCache()
    alone = record(model, sampler, num_rows=1)
    for rows, verifier in ((4, NoVerifier()), (2, SelfVerify(4)), (3, SelfVerify(3, "tree"))):
        together = record(model, sampler, num_rows=rows, cache=cache, verifier=verifier)
        for request, output in alone.items():
            for single, batched in zip(output.commits, together[request].commits, strict=True):
                torch.testing.assert_close(single, batched, rtol=1e-7, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(
    "drafting",
    [
        PathSearch(),
        Sampled(),
        Sampled(num_forwards=2),
        Tree(budget=8),
        PathSearch(num_forwards=2),
        Pool(),
        Recycling(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_tokens_of_a_target_have_its_log_probabilities(drafting: Any, temperature: float) -> None:
    model, target = HashModel(), tiny_target()
    out = decode(
        model, PROMPTS, ConfidenceThreshold(0.3), verifier=ARVerify(target, drafting=drafting),
        gen_length=12, block_length=4, temperature=temperature, return_logprobs=True,
    )  # fmt: skip
    num_commits = 0
    for row, prompt in enumerate(PROMPTS):
        tokens = out.tokens[row].tolist()
        logits = logits_of(tiny_llama(), [*prompt, *tokens])
        logits[:, model.mask_id] = -torch.inf
        for position, token in enumerate(tokens):
            if out.commits.steps[row, position] >= 0:
                law = logits[len(prompt) + position - 1]
                drawn = (law / (temperature or 1.0)).log_softmax(-1)[token]
                torch.testing.assert_close(out.commits.logprobs[row, position], drawn)
                plain = law.log_softmax(-1)[token]
                torch.testing.assert_close(out.commits.model_logprobs[row, position], plain)
                num_commits += 1
    assert num_commits > 20


def test_given_tokens_have_no_step() -> None:
    model = HashModel(eos_ids=(22,))
    template = [3, model.mask_id, 4, model.mask_id]
    out = decode(
        model, [[1, 2]], FixedSchedule(2), templates=[template], gen_length=4, block_length=4,
        return_logprobs=True, stop_at_eos=False,
    )  # fmt: skip
    steps, *logprobs = out.commits
    assert (steps[0] >= 0).tolist() == [False, True, False, True]
    for values in logprobs:
        assert values[0].isnan().tolist() == [True, False, True, False]
    full = decode(
        model, [[1, 2]], FixedSchedule(2), templates=[[3, 4]], gen_length=2, return_logprobs=True
    )
    assert full.commits.steps.tolist() == [[-1, -1]]

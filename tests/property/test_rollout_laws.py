"""A rollout holds every canvas of its decode, and is scored as it was decoded."""

from copy import copy
from typing import Any

import pytest
import torch
from plugins_under_test import INSTANCES
from tiny_models import (
    BIDIRECTIONAL,
    EVERY_FAMILY,
    FAMILIES,
    LAW_OPTIONS,
    REGISTERED,
    TINY_PROMPTS,
    load_tiny,
    logprobs_of_columns,
    tiny,
)
from torch import Tensor

from dllm_decode import DecodeConfig, RequestQueue, Rollout, StepEvent, score
from dllm_decode.blocks import AdaptiveBlocks, MultiBlock, SubBlocks
from dllm_decode.caches import DelayedCache, DualCache, FreeCache, NoCache, PrefixCache
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.engine.loop import run
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.weight_versions import version_of
from dllm_decode.rollouts.rollout import RolloutRecorder
from dllm_decode.verify import SelfVerify
from samplers import T2M, ConfidenceThreshold, Fact, FixedSchedule, JointThreshold, Sampler, Wino

M = -1
"""[MASK] in a template."""
# Each row has its own answer length, temperature and truncation; row 1 fills a template.
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.0, "template": [M, 33, M, M, 35, M, M, 44]},
    {"temperature": 0.7, "gen_length": 9, "top_p": 0.9},
    {"temperature": 1.3, "seed": 4, "top_k": 30},
]


class Seen:
    """The canvas of each row before each of its steps."""

    def __init__(self) -> None:
        self.canvases: dict[int, list[list[int]]] = {}

    def __call__(self, event: StepEvent) -> None:
        for n, row in enumerate(event.rows):
            before = event.before.tokens[n, : row.end].tolist()
            self.canvases.setdefault(row.request.index, []).append(before)


def ending(family: str) -> MaskedTransformer:
    """Returns a model with many EOS ids, so that answers end early."""
    model = copy(tiny(family))
    model.eos_ids = (model.eos_ids[0], *range(0, 500, 12))
    return model


def rolled_out(
    model: MaskedTransformer, sampler: Sampler, *, num_rows: int = 3, **parts: Any
) -> tuple[list[Rollout], Seen]:
    """Decodes four prompts, each with its own options; rows join as others end."""
    plugins = {name: parts.pop(name) for name in ("cache", "verifier", "blocks") if name in parts}
    options = {"gen_length": 14} | ({} if "blocks" in plugins else {"block_length": 4}) | parts
    decoder = new_decoder(model, sampler, config=DecodeConfig(**options), **plugins)
    recorder, seen, requests = RolloutRecorder(), Seen(), []
    for index, (prompt, row) in enumerate(zip(TINY_PROMPTS, OPTIONS, strict=False)):
        template = [model.mask_id if token == M else token for token in row.get("template", ())]
        changes: Any = {name: value for name, value in row.items() if name != "template"}
        requests.append(decoder.request(prompt, index, template=template, **changes))
    answers = run(decoder, RequestQueue(requests), num_rows, [recorder, seen])
    outputs = {answer.index: answer.output for answer in answers}
    version = version_of(model)
    rollouts = [
        recorder.rollout(decoder, request, outputs[request.index], version) for request in requests
    ]
    return rollouts, seen


def gap(model: MaskedTransformer, rollouts: list[Rollout]) -> float:
    """Returns the largest difference of scores from records, under both laws."""
    with torch.no_grad():
        differences = [score(model, rollouts, law=law).difference for law in ("model", "drawn")]
    return max(differences)


def fits(family: str, sampler: Sampler) -> bool:
    """Wino needs a model of unshifted logits that attends both ways."""
    return Fact.LEAVE_ONE_OUT not in sampler.needs or family == "llada"


CASES = [
    pytest.param(family, sampler, id=f"{family}-{sampler!r}")
    for sampler in (*INSTANCES, Wino(0.4, 0.3))
    for family in FAMILIES
    if fits(family, sampler)
]


@pytest.mark.exhaustive(60)
@pytest.mark.parametrize(("family", "sampler"), CASES)
def test_every_canvas_is_rebuilt_and_scored_as_it_was_decoded(
    family: str, sampler: Sampler
) -> None:
    model = ending(family)
    rollouts, seen = rolled_out(model, sampler)
    for index, rollout in enumerate(rollouts):
        canvases = rollout.canvases().tolist()
        # Steps that only settle tokens may follow the last write.
        shown = seen.canvases[index]
        assert canvases[: len(shown)] == shown[: len(canvases)]
        assert all(later == canvases[-1] for later in shown[len(canvases) :])
        assert Rollout.from_json(rollout.to_json()) == rollout
    assert sum(len(rollout.commits) for rollout in rollouts) > 20
    assert gap(model, rollouts) < 1e-9


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize(
    ("sampler", "parts"),
    [
        (ConfidenceThreshold(0.3), {"truncate_at_eos": True, "stop_at_eos": False}),
        (ConfidenceThreshold(0.3), {"cfg_scale": 0.7, "banned_ids": (5, 317)}),
        (FixedSchedule(4), {"verifier": SelfVerify(3)}),
        (ConfidenceThreshold(0.2), {"blocks": MultiBlock(4, 0.5, 0.5)}),
        (ConfidenceThreshold(0.2), {"blocks": SubBlocks(4, 2)}),
        (ConfidenceThreshold(0.2), {"blocks": AdaptiveBlocks((5, 317, 40), threshold=0.1)}),
        (ConfidenceThreshold(0.2), {"block_length": 8, "confidence_from": "tempered"}),
    ],
    ids=["truncated", "guided", "SelfVerify", "MultiBlock", "SubBlocks", "AdaptiveBlocks", "two"],
)
def test_options_of_a_decode_are_those_of_its_scores(
    family: str, sampler: Sampler, parts: dict[str, Any]
) -> None:
    if "blocks" in parts and Fact.SEES_BOTH_WAYS in parts["blocks"].needs:
        family = BIDIRECTIONAL
    rollouts, _ = rolled_out(ending(family), sampler, **parts)
    assert gap(ending(family), rollouts) < 1e-9


def test_the_rare_events_of_the_laws_happen() -> None:
    """Tokens are edited and re-masked, tails are committed, and EOS overwrites committed tokens."""
    mask_id = tiny("sdar").mask_id
    edited, _ = rolled_out(tiny("sdar"), JointThreshold(0.3, 0.2))
    remasked, _ = rolled_out(tiny("sdar"), T2M(0.3, "t2t_remask", 0.3, 3))
    for rollouts in (edited, remasked):
        assert any(len(rollout.commits) > rollout.length for rollout in rollouts)
    assert any(write.token == mask_id for rollout in remasked for write in rollout.writes)
    assert any(write.position >= len(r.tokens) for r in edited for write in r.commits)
    options: Any = {"truncate_at_eos": True, "stop_at_eos": False, "block_length": 14}
    truncated, _ = rolled_out(ending("llada"), FixedSchedule(14, "random"), **options)
    last = [{write.position: write for write in rollout.writes} for rollout in truncated]
    lost = [
        write
        for rollout, final in zip(truncated, last, strict=True)
        for write in rollout.commits
        if not final[write.position].is_commit
    ]
    assert lost


@pytest.mark.parametrize("family", [key for key in EVERY_FAMILY if REGISTERED[key].block_length])
@pytest.mark.parametrize("cache", [PrefixCache(), DualCache(), FreeCache()], ids=repr)
def test_caches_on_block_causal_models_are_scored_exactly(family: str, cache: Any) -> None:
    rollouts, _ = rolled_out(ending(family), ConfidenceThreshold(0.3), cache=cache)
    assert gap(ending(family), rollouts) < 1e-9


@pytest.mark.parametrize("family", [key for key in FAMILIES if not REGISTERED[key].block_length])
def test_scores_say_by_how_much_an_approximate_cache_differs(family: str) -> None:
    for cache in (DualCache(), DelayedCache(refresh_every=3, warm_up=1)):
        rollouts, _ = rolled_out(tiny(family), ConfidenceThreshold(0.3), cache=cache)
        assert gap(tiny(family), rollouts) > 0.01
    rollouts, _ = rolled_out(tiny(family), ConfidenceThreshold(0.3), cache=NoCache())
    assert gap(tiny(family), rollouts) < 1e-9


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_float32_differs_by_rounding_alone(family: str) -> None:
    model = load_tiny(family, dtype=torch.float32, **LAW_OPTIONS[family]).requires_grad_()
    rollouts, _ = rolled_out(model, ConfidenceThreshold(0.3))
    difference = score(model, rollouts).difference
    assert difference < 1e-4


def plain_loop(model: MaskedTransformer, rollout: Rollout) -> Tensor:
    """Sums the log-probabilities of a rollout's commits, one forward of one row a step."""
    total = torch.zeros((), dtype=torch.float64)
    for step, canvas in enumerate(rollout.canvases()):
        writes = [write for write in rollout.commits if write.step == step]
        logprobs = logprobs_of_columns(model, canvas)[len(rollout.prompt) :]
        for write in writes:
            total = total + logprobs[write.position, write.token]
    return total


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_gradients_are_those_of_a_plain_loop(family: str) -> None:
    model = load_tiny(family, dtype=torch.float64, **LAW_OPTIONS[family]).requires_grad_()
    rollouts, _ = rolled_out(model, ConfidenceThreshold(0.3))
    parameters = list(model.parameters())
    expected = sum(plain_loop(model, rollout) for rollout in rollouts)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    scores = score(model, rollouts)
    found = torch.autograd.grad(scores.logprobs.sum(), parameters, allow_unused=True)
    torch.testing.assert_close(scores.logprobs.sum(), expected, rtol=0.0, atol=1e-9)
    largest = max(float(theirs.abs().max()) for theirs in wanted if theirs is not None)
    assert largest > 0.1
    for theirs, ours in zip(wanted, found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None and ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)

"""Law 2: a row's tokens never depend on its neighbours, whenever rows join, leave or are cancelled.

Random requests with options of their own join a running decode at random rounds; some are
cancelled. Each answer equals that of `decode` on the prompt alone, exactly, since logits are in
float64.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from families_under_test import EVERY_FAMILY
from spied import tiny

from dllm_decode import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
    Verifier,
)
from dllm_decode.blocks import AdaptiveBlocks, BlockSchedule, MultiBlock, Sequential, SubBlocks
from dllm_decode.core.rows import Request, RequestQueue
from dllm_decode.decoder import Decoder
from dllm_decode.loop import new_decoder, run
from dllm_decode.models import MaskedTransformer
from dllm_decode.options import DecodeConfig
from samplers import (
    T2M,
    ConfidenceThreshold,
    CreditDecoding,
    EntropyBound,
    FixedSchedule,
    JointThreshold,
    Klass,
    LocalLeap,
    Prophet,
    Sampler,
    Wino,
)

SAMPLERS: tuple[Sampler, ...] = (
    ConfidenceThreshold(0.6),
    FixedSchedule(3),
    FixedSchedule(4, "random"),
    EntropyBound(0.5),
    LocalLeap(),
    CreditDecoding(LocalLeap()),
    Klass(0.5, 0.1, 1),
    Prophet(FixedSchedule(4)),
    Prophet(FixedSchedule(4), gap="all"),
    JointThreshold(0.6, 0.4, 3),
    T2M(0.6, "low_prob", 0.5, 2, 0.5, 3),
    T2M(0.3, "logit_diff", 0.1, 3, eos_early_stop=False),
    Wino(),
)
CACHES: tuple[CachePolicy, ...] = (
    NoCache(),
    PrefixCache(),
    PrefixCache(refresh_every=2),
    PrefixCache(entry="official"),
    DualCache(),
    DualCache(refresh_every=3, before=2, after=3),
    FreeCache(),
    FreeCache("official"),
    DelayedCache(refresh_every=3),
    SettledCache(),
    PipelineCache(block_length=4),
    SubBlockCache(),
    SuffixWindow(width=3),
    SuffixWindow(NoCache(), 0, tail=0),
    SuffixWindow(FreeCache(), 5, tail=2),
)
SCHEDULES: tuple[BlockSchedule, ...] = (
    Sequential(),
    Sequential(),
    SubBlocks(sub_block_length=2),
    MultiBlock(open_at=0.5, force_at=0.5),
    MultiBlock(open_at=0.1, max_open=2, forces="every"),
    AdaptiveBlocks((3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377), threshold=0.05),
)
VERIFIERS: tuple[Verifier, ...] = (
    NoVerifier(),
    NoVerifier(),
    SelfVerify(3),
    SelfVerify(4, "tree"),
    SelfVerify(2, "sequential"),
    SelfVerify(1),
)


class Case(NamedTuple):
    """One decode of several requests, and when each joins or is cancelled."""

    decoder: Decoder
    requests: list[Request]
    joins: list[int]
    cancels: dict[int, int]
    num_rows: int


def cases(seed: int, number: int) -> Iterator[Case]:
    rng = random.Random(seed)
    while number:
        case = _case(rng)
        if case is not None:
            number -= 1
            yield case


def _case(rng: random.Random) -> Case | None:
    """Draws a case; `None` if its parts do not fit together."""
    model: MaskedTransformer = tiny(rng.choice(EVERY_FAMILY))
    align = model.causal_block_length
    block_length = align * rng.choice((1, 2)) if align else rng.choice((3, 4, 8))
    config = DecodeConfig(
        gen_length=24,
        block_length=block_length,
        stop_at_eos=rng.random() < 0.7,
        truncate_at_eos=rng.random() < 0.3,
        confidence_from=rng.choice(("raw", "raw", "tempered")),
    )
    try:
        decoder = new_decoder(
            model, rng.choice(SAMPLERS), cache=rng.choice(CACHES),
            verifier=rng.choice(VERIFIERS), blocks=rng.choice(SCHEDULES), config=config,
        )  # fmt: skip
    except ValueError:
        return None
    requests = [_request(rng, decoder, index) for index in range(rng.randint(2, 6))]
    joins = [rng.randint(0, 12) if index else 0 for index in range(len(requests))]
    cancels = {index: rng.randint(1, 8) for index in range(len(requests)) if rng.random() < 0.1}
    return Case(decoder, requests, joins, cancels, rng.randint(1, 4))


def _request(rng: random.Random, decoder: Decoder, index: int) -> Request:
    model = decoder.model
    special = {model.mask_id, *model.eos_ids, *model.banned_ids}
    ids = [token for token in range(100) if token not in special]
    gen_length = rng.choice((5, 11, 17, 24))
    template: list[int] = []
    if rng.random() < 0.4:
        choices = (model.mask_id, model.mask_id, rng.choice(ids), model.eos_ids[0])
        template = rng.choices(choices, (4, 4, 6, 1), k=rng.randint(1, gen_length))
    options: dict[str, Any] = {"gen_length": gen_length, "seed": rng.randint(0, 3)}
    if rng.random() < 0.5:
        options |= {"temperature": rng.choice((0.0, 0.7, 2.5))}
    if rng.random() < 0.2:
        options |= rng.choice(({"top_k": 3}, {"top_p": 0.7}))
    prompt = rng.choices(ids, k=rng.randint(1, 13))
    return decoder.request(prompt, index, template=template, **options)


def _together(case: Case, events: Counter[str]) -> dict[int, list[int]]:
    queue = RequestQueue()
    waiting = sorted(zip(case.joins, case.requests, strict=True), key=lambda pair: pair[0])
    rounds = 0

    def watch(event: Any) -> None:
        nonlocal rounds
        rounds += 1
        while waiting and waiting[0][0] <= rounds:
            queue.put(waiting.pop(0)[1])
            events["joined while others run"] += 1
        for index, at in case.cancels.items():
            if at == rounds:
                queue.cancel(index)
        blocks = {row.opening.start - row.first for row in event.rows}
        events["rounds at different blocks"] += len(blocks) > 1
        temperatures = {row.request.temperature for row in event.rows}
        events["rounds of different temperatures"] += len(temperatures) > 1

    queue.put(waiting.pop(0)[1])
    found: dict[int, list[int]] = {}
    while True:
        for answer in run(case.decoder, queue, case.num_rows, [watch]):
            found[answer.request] = answer.output.tokens[0].tolist()
        if not waiting:
            return found
        queue.put(waiting.pop(0)[1])


def _alone(decoder: Decoder, request: Request) -> list[int]:
    queue = RequestQueue(iter([request]))
    (answer,) = run(decoder, queue, 1)
    return answer.output.tokens[0].tolist()


def check(seed: int, number: int) -> Counter[str]:
    events: Counter[str] = Counter()
    for case in cases(seed, number):
        found = _together(case, events)
        for request in case.requests:
            if request.index not in found:
                events["cancelled"] += 1
                assert request.index in case.cancels
                continue
            events["rows"] += 1
            assert found[request.index] == _alone(case.decoder, request), (case.decoder, request)
    return events


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_join_leave_and_are_cancelled_decode_as_alone(seed: int) -> None:
    events = check(seed, 25)
    assert events["rows"] > 50
    assert events["joined while others run"] > 15
    assert events["cancelled"] > 0
    assert events["rounds at different blocks"] > 20
    assert events["rounds of different temperatures"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_rows_that_join_leave_and_are_cancelled_decode_as_alone(seed: int) -> None:
    assert check(seed, 60)["rows"] > 100


def test_a_request_alone_is_decoded_as_by_the_public_function() -> None:
    """`run` with one row and `decode` are the same loop, so the law above speaks of both."""
    torch.manual_seed(0)
    for case in cases(7, 5):
        request = case.requests[0]
        assert len(_alone(case.decoder, request)) == request.gen_length

"""Equal prompts are computed once, and nothing but the count of columns tells so."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tiny_models import BIDIRECTIONAL, tiny, tiny_gemma

from dllm_decode import (
    CachePolicy,
    DecodeOutput,
    DualCache,
    FreeCache,
    MultiBlock,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SuffixWindow,
    new_decoder,
)
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.rows import Request, RequestQueue
from dllm_decode.engine.loop import rounds, run
from samplers import AcceptAndRenoise, ConfidenceThreshold, FixedSchedule

ONE, OTHER = [17, 40, 41, 9, 9, 30, 31, 32, 5], [99, 7, 7, 250, 31, 30, 31, 32, 5]
# The whole blocks of both prompts have 8 columns; the third differs in a block, the last does not.
PROMPTS = [ONE, ONE, OTHER, ONE, [*ONE[:8], 6], ONE, OTHER, ONE]


def outputs(decoder: Any, requests: Sequence[Request], num_rows: int) -> list[DecodeOutput]:
    found = sorted(run(decoder, RequestQueue(requests), num_rows), key=lambda one: one.request)
    assert [one.error for one in found] == [""] * len(requests)
    return [one.output for one in found]


def several(decoder: Any) -> list[Request]:
    """Returns requests that differ in all options of a row."""
    return [
        decoder.request(
            prompt, n, gen_length=4 + 4 * (n % 3), temperature=1.3 * (n % 2), seed=n % 3
        )
        for n, prompt in enumerate(PROMPTS)
    ]


def saved_columns(
    decoder: Any, *nums_rows: int, requests: Sequence[Request] = ()
) -> Iterator[list[int]]:
    """Checks that answers are those of each request alone; yields the columns that are saved."""
    requests = requests or several(decoder)
    alone = [outputs(decoder, [request], 1)[0] for request in requests]
    for num_rows in nums_rows:
        pairs = list(zip(alone, outputs(decoder, requests, num_rows), strict=True))
        assert all(torch.equal(one.tokens, other.tokens) for one, other in pairs)
        assert all(torch.equal(one.nfe, other.nfe) for one, other in pairs)
        yield [int(one.query_positions) - int(other.query_positions) for one, other in pairs]


@pytest.mark.parametrize(
    ("cache", "family"),
    [
        (FreeCache(), "sdar"), (FreeCache(), "fast_dllm_v2"),
        (FreeCache("official"), "fast_dllm_v2"), (SuffixWindow(FreeCache()), "sdar"),
    ],
    ids=repr,
)  # fmt: skip
def test_equal_prompts_are_computed_once(cache: CachePolicy, family: str) -> None:
    model = tiny(family)
    config = DecodeConfig(gen_length=12, block_length=4, stop_at_eos=False)
    decoder = new_decoder(model, ConfidenceThreshold(0.3), cache=cache, config=config)
    all_rows, few_rows, one_row = saved_columns(decoder, 8, 3, 1)
    # The column before the first block predicts it on a model whose logits are shifted.
    assert all_rows == [8 - model.logit_shift if n not in (0, 2) else 0 for n in range(8)]
    assert sum(few_rows) > 0
    assert sum(one_row) == 0


@pytest.mark.parametrize(
    ("options", "is_saved"),
    [
        ({"verifier": SelfVerify(3)}, True),
        ({"blocks": MultiBlock(4)}, True),
        ({"cache": PrefixCache()}, False),
        ({"cache": DualCache()}, False),
        ({"cache": SettledCache()}, False),
        # A prompt that sees its answer.
        ({"model": tiny(BIDIRECTIONAL)}, False),
    ],
    ids=range(6),
)
def test_models_and_plug_ins_share_prompts_or_not(options: dict[str, Any], is_saved: bool) -> None:
    config = DecodeConfig(gen_length=12, block_length=4, stop_at_eos=False)
    parts = {"model": tiny("sdar"), "cache": FreeCache(), **options}
    decoder = new_decoder(sampler=ConfidenceThreshold(0.3), config=config, **parts)
    assert all((sum(saved) > 0) == is_saved for saved in saved_columns(decoder, 8, 3))


def test_prompts_of_a_uniform_state_model_are_computed_once() -> None:
    config = DecodeConfig(gen_length=16)
    rule = AcceptAndRenoise(num_steps=4, confidence_threshold=0.05)
    decoder = new_decoder(tiny_gemma(), rule, cache=FreeCache(), config=config)
    requests = [decoder.request(prompt, n) for n, prompt in enumerate((ONE, ONE, OTHER, ONE))]
    (saved,) = saved_columns(decoder, 4, requests=requests)
    assert saved == [0, len(ONE), 0, len(ONE)]


def test_a_request_waits_for_one_round_at_most() -> None:
    """Answers of one round would else be computed one after the other."""
    config = DecodeConfig(gen_length=4, block_length=4)
    decoder = new_decoder(tiny("sdar"), FixedSchedule(1), cache=FreeCache(), config=config)
    requests = [decoder.request(ONE[:8], n) for n in range(6)]
    found = list(rounds(decoder, RequestQueue(requests), 6))
    assert [len(ended) for ended in found if ended] == [1, 5]


def test_copies_go_on_if_the_first_is_cancelled() -> None:
    config = DecodeConfig(gen_length=12, block_length=4, stop_at_eos=False)
    decoder = new_decoder(tiny("sdar"), FixedSchedule(2), cache=FreeCache(), config=config)
    requests = [decoder.request(ONE, n, seed=3, noise_index=0) for n in range(3)]
    queue = RequestQueue(requests)
    running = rounds(decoder, queue, 3)
    next(running)
    queue.cancel(0)
    found = [answer for answers in running for answer in answers]
    (alone,) = outputs(decoder, requests[:1], 1)
    assert sorted(answer.request for answer in found) == [1, 2]
    assert all(torch.equal(answer.output.tokens, alone.tokens) for answer in found)

"""Law 6 with rows that join at any round: verified answers are those of each prompt alone."""

from collections import Counter
from typing import Any

import pytest
from toys import DriftingModel, greedy, tiny_target

from dllm_decode import (
    ARVerify,
    Drafting,
    DraftLength,
    PathSearch,
    Sampled,
    StepEvent,
    Tree,
    decode,
    decode_many,
)
from dllm_decode.loop import new_decoder
from dllm_decode.options import DecodeConfig
from samplers import ConfidenceThreshold

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5], [3, 3], [7] * 20]
DRAFTINGS: tuple[Drafting, ...] = (
    PathSearch(),
    PathSearch(num_forwards=2),
    Tree(8),
    Tree(8, num_forwards=3),
    Sampled(),
)


def decoded(num_rows: int, **options: Any) -> tuple[list[list[int]], Counter[str]]:
    """Returns the answers of `decode_many`, and how often rows joined others in mid-decode."""
    events: Counter[str] = Counter()
    known: set[int] = set()

    def watch(event: StepEvent) -> None:
        fresh = {row.request.index for row in event.rows} - known
        events["joined"] += len(fresh) if known else 0
        known.update(fresh)
        blocks = {row.opening.start - row.first for row in event.rows}
        events["different blocks"] += len(blocks) > 1
        events["some rows wait"] += len(event.rows) < num_rows

    outs = list(
        decode_many(prompts=PROMPTS, num_rows=num_rows, observers=[watch], gen_length=12, **options)
    )
    events["saved"] = sum(int((out.accepted > 0).all()) for out in outs)
    return [out.tokens[0].tolist() for out in outs], events


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("drafting", DRAFTINGS, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_of_a_target_that_join_are_answered_as_by_the_target_alone(
    drafting: Drafting, temperature: float
) -> None:
    target = tiny_target(seed=2, scale=2.0)
    target.eos_ids = (22, 13)
    options: Any = {
        "model": DriftingModel(peak=3.0), "sampler": ConfidenceThreshold(0.25), "block_length": 4,
        "temperature": temperature,
        "verifier": ARVerify(target, DraftLength(2, 6, growth=2), drafting),
    }  # fmt: skip
    alone = [
        decode(prompts=PROMPTS[: row + 1], gen_length=12, **options).tokens[row].tolist()
        for row in range(len(PROMPTS))
    ]
    if temperature == 0.0:
        stops = target.eos_ids
        assert alone == [
            greedy(target.network.model, prompt, gen_length=12, stops=stops, banned=(23,))
            for prompt in PROMPTS
        ]
    for num_rows in (1, 2, 3):
        answers, found = decoded(num_rows, **options)
        assert answers == alone
        assert found["joined"] == len(PROMPTS) - num_rows
        assert found["saved"] > 0, "no draft was accepted"


def test_rows_under_a_target_may_differ_in_temperature_unless_drafts_are_drawn() -> None:
    for drafting, is_refused in ((PathSearch(), False), (Tree(8), False), (Sampled(), True)):
        decoder = new_decoder(
            DriftingModel(), ConfidenceThreshold(0.25), verifier=ARVerify(tiny_target(),
            drafting=drafting), config=DecodeConfig(gen_length=12, block_length=4),
        )  # fmt: skip
        if not is_refused:
            assert decoder.request([1, 2], 0, temperature=0.7).config.temperature == 0.7
            with pytest.raises(ValueError, match="top_p and top_k of a request must be left out"):
                decoder.request([1, 2], 0, top_p=0.5)
            continue
        with pytest.raises(ValueError, match="must have the decode's temperature"):
            decoder.request([1, 2], 0, temperature=0.7)

"""The usual kinds of forwards are recorded before the server is ready."""

from copy import deepcopy
from dataclasses import replace

import torch
from served import LIMITS
from tiny_models import tiny

from dllm_decode import DecodeConfig, FreeCache, decode_many, new_decoder
from dllm_decode.serve.warm_up import warm_up
from samplers import ConfidenceThreshold

LIMITS_OF_TWO = replace(LIMITS, num_rows=2, max_length=200, max_tokens=8, gen_length=8)


def test_usual_kinds_are_recorded_and_stay() -> None:
    said: list[str] = []
    model = deepcopy(tiny("llada"))
    config = DecodeConfig(gen_length=8, block_length=4)
    sampler = ConfidenceThreshold(1.0)
    decoder = new_decoder(model, sampler, cache=FreeCache(), config=config)
    warm_up(decoder, LIMITS_OF_TWO, said.append)
    assert said == []
    model.graphs = True
    warm_up(decoder, LIMITS_OF_TWO, said.append)
    assert [text.partition(" in ")[0] for text in said] == [
        "Recorded forwards of 1 of 2 rows", "Recorded forwards of 2 of 2 rows",
    ]  # fmt: skip
    graphs = model._graphs
    assert graphs is not None
    recorded = set(graphs._graphs)
    graphs.calls.clear()
    assert {kind.rows for kind in recorded} == {1, 2}
    prompts = torch.randint(5, 60, (2, 110), generator=torch.Generator().manual_seed(1)).tolist()
    list(decode_many(model, prompts, sampler, cache=FreeCache(), num_rows=2, config=config))
    assert recorded <= set(graphs._graphs)
    # Forwards that compute a whole prompt have a kind for each length.
    assert graphs.calls[None] < graphs.calls.total() / 2

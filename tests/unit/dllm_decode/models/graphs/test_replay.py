"""Decodes whose forwards are played again; CUDA is stood in for by Python."""

from typing import Any

import pytest
import torch
from pretended import PROMPTS, Replayed
from tiny_models import FAMILIES, load_tiny

from dllm_decode import (
    DelayedCache,
    DualCache,
    ForwardInputs,
    FreeCache,
    PrefixCache,
    SelfVerify,
    decode,
)
from dllm_decode.models import masked_transformer
from samplers import ConfidenceThreshold, FixedSchedule


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "cache", [PrefixCache(), DualCache(), FreeCache(), DelayedCache()], ids=repr
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
        # Rows that compute different numbers of columns are not captured; one row always is.
        for prompts in (PROMPTS, PROMPTS[:1]):
            plain = decode(replayed.model, prompts, sampler, **options)
            out = decode(replayed, prompts, sampler, **options)
            assert torch.equal(plain.tokens, out.tokens)
            assert torch.equal(plain.nfe, out.nfe)
    assert replayed.recorder.num_replayed >= replayed.recorder.num_captured > 0


@pytest.mark.parametrize("cache", [DualCache(), FreeCache(), DelayedCache(2, 1)], ids=repr)
@pytest.mark.parametrize("family", ["dream", "sdar"])
def test_a_canvas_of_several_sizes_gives_the_same_answers(family: str, cache: Any) -> None:
    """Of a block-causal model, each block has more keys than the one before, up to 72."""
    replayed = Replayed(family)
    prompts = [[(7 * column) % 500 for column in range(length)] for length in (48, 41)]
    options: Any = {"gen_length": 24, "block_length": 8, "cache": cache}
    plain = decode(replayed.model, prompts, FixedSchedule(4), **options)
    for _ in range(2):
        out = decode(replayed, prompts, FixedSchedule(4), **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.query_positions, out.query_positions)
    keys = {graph.inputs.attend.shape[-1] for graph in replayed.runner._graphs.values()}
    assert keys == ({128} if family == "dream" else {64, 128})
    assert replayed.recorder.num_replayed


class Counted(Replayed):
    """Notes the numbers of rows and columns of all forwards."""

    def __init__(self, family: str, **options: Any) -> None:
        super().__init__(family, **options)
        self.play, self.predict = self.predict, self.noted
        self.sizes: list[tuple[int, ...]] = []

    def noted(self, inputs: ForwardInputs) -> torch.Tensor:
        self.sizes.append(tuple(inputs.tokens.shape))
        return self.play(inputs)


@pytest.mark.parametrize(("num_rows", "most_captured"), [(12, 4), (32, 1)])
def test_rows_that_finish_at_different_times_share_one_graph(
    num_rows: int, most_captured: int
) -> None:
    """Row n has n + 1 open positions, and fills one a step. Few rows are padded to all of them."""
    replayed = Counted("llada", max_columns=10**6)
    prompts = [[7 + row, 40, *range(3, 3 + row % 7)] for row in range(num_rows)]
    templates = [[9] * row for row in range(num_rows - 1, -1, -1)]
    options: Any = {"gen_length": num_rows, "block_length": num_rows, "templates": templates}
    options["cache"] = DualCache()
    plain = decode(replayed.model, prompts, ConfidenceThreshold(1.0), **options)
    for _ in range(2):
        out = decode(replayed, prompts, ConfidenceThreshold(1.0), **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.nfe, out.nfe)
    # The first forward has rows of several lengths, so that it is not captured.
    assert {rows for rows, _ in replayed.sizes} == set(range(1, num_rows))
    assert (num_rows < 32) <= replayed.recorder.num_captured <= most_captured
    assert num_rows == 32 or replayed.recorder.num_replayed >= 2 * num_rows - 4


@pytest.mark.parametrize(
    ("cache", "num_kinds"),
    [(DualCache(), 2), (PrefixCache(), 3), (FreeCache(), 3)],
    ids=repr,
)
def test_prompts_of_one_bucket_share_graphs(cache: Any, num_kinds: int) -> None:
    """Of all columns, and of those that the cache computes: as many as one or two blocks."""
    replayed = Replayed("llada")
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    for length in range(113, 133):
        prompt = [(7 * column + length) % 500 for column in range(length)]
        out = decode(replayed, [prompt], FixedSchedule(2), **options)
        if length % 5 == 0:
            plain = decode(replayed.model, [prompt], FixedSchedule(2), **options)
            assert torch.equal(plain.tokens, out.tokens)
    assert replayed.recorder.num_captured == num_kinds
    assert replayed.recorder.num_replayed >= 20 * 4 - 2 * num_kinds


@pytest.mark.parametrize("family", FAMILIES)
def test_two_decodes_at_a_time_do_not_meet(family: str) -> None:
    replayed = Replayed(family)
    options: Any = {"gen_length": 16, "block_length": 8, "cache": DualCache()}
    inner: list[torch.Tensor] = []

    def decode_another(event: Any) -> None:
        out = decode(replayed, PROMPTS[1:], FixedSchedule(4), **options)
        inner.append(out.tokens)

    alone = decode(replayed.model, PROMPTS[1:], FixedSchedule(4), **options).tokens
    plain = decode(replayed.model, PROMPTS, FixedSchedule(4), **options)
    out = decode(replayed, PROMPTS, FixedSchedule(4), observers=[decode_another], **options)
    assert torch.equal(plain.tokens, out.tokens)
    assert len(inner) >= 8
    assert all(torch.equal(alone, tokens) for tokens in inner)
    assert replayed.recorder.num_replayed


@pytest.mark.parametrize("family", ["llada", "llada_moe"])
def test_only_forwards_that_are_cheaper_than_launching_them_are_graphs(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all experts were counted, and the gate of a mixture was several times too low."""
    model = load_tiny(family)
    config = model.transformer.config
    met = sum(
        part.numel() * (config.moe.num_active if ".experts." in name else 1)
        // (config.moe.num_experts if ".experts." in name else 1)
        for name, part in model.transformer.named_parameters()
    )  # fmt: skip
    everything = sum(part.numel() for part in model.transformer.parameters())
    assert (met < everything) == (family == "llada_moe")
    monkeypatch.setattr(masked_transformer, "_MAX_GRAPH_FLOPS", 100.5 * 2 * met)
    assert masked_transformer._new_runner(model.transformer).max_columns == 100
    monkeypatch.setattr(masked_transformer, "_MAX_GRAPH_FLOPS", 1e30)
    assert masked_transformer._new_runner(model.transformer).max_columns == 4096

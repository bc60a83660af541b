from typing import Any

import pytest
import torch
from pretended import PROMPTS
from tiny_models import Spied, tiny

from dllm_decode import (
    CachePolicy,
    DecodeOutput,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    SelfVerify,
    decode,
)
from samplers import FixedSchedule, Prophet


@pytest.mark.parametrize("cache", [DualCache(), PrefixCache(), FreeCache()], ids=repr)
def test_the_branches_of_a_tree_share_the_memory_of_their_row(cache: CachePolicy) -> None:
    spied = Spied(tiny("llada"))
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    decode(spied, PROMPTS, FixedSchedule(8), verifier=SelfVerify(3, "tree"), **options)
    length = 9 + 16
    assert len(spied.held) == len(PROMPTS)
    tree = [call for call in spied.calls if call.kv_cache.keys.shape[3] > length]
    columns = [call.tokens.shape[1] // 3 for call in tree if call.tokens.shape[1] % 3 == 0]
    assert max(call.kv_cache.keys.shape[3] for call in tree) == length + 2 * max(columns)


def test_every_column_of_every_draft_is_on_the_bill() -> None:
    spied = Spied(tiny("llada"))
    out = decode(
        spied, PROMPTS, FixedSchedule(8), verifier=SelfVerify(4), cache=DualCache(),
        gen_length=16, block_length=8, stop_at_eos=False,
    )  # fmt: skip
    assert out.forwards == len(spied.calls)
    assert int(out.query_positions.sum()) == sum(call.tokens.numel() for call in spied.calls)
    assert max(len(call.tokens) for call in spied.calls) == 12


def by_reach(
    family: str, cache: CachePolicy, prompts: Any, *, sampler: Any, evaluate: Any = "batch"
) -> list[DecodeOutput]:
    """Decodes plainly, with drafts that end with the block, and with drafts of the next block."""
    drafting = (SelfVerify(6, evaluate, "block"), SelfVerify(6, evaluate, "next"))
    return [
        decode(
            tiny(family), prompts, sampler, verifier=verifier, cache=cache, gen_length=16,
            block_length=4, stop_at_eos=False,
        )
        for verifier in (NoVerifier(), *drafting)
    ]  # fmt: skip


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("evaluate", ["batch", "tree"])
@pytest.mark.parametrize(
    ("family", "cache"),
    [("sdar", PrefixCache()), ("sdar", FreeCache()), ("sdar", DualCache()),
     ("sdar", NoCache()), ("llada", NoCache())],
    ids=str,
)  # fmt: skip
def test_a_finished_block_that_was_foreseen_spares_the_first_forward_of_the_next(
    family: str, cache: CachePolicy, evaluate: Any
) -> None:
    saved = 0
    for prompts in (PROMPTS, PROMPTS[:1]):
        plain, near, far = by_reach(
            family, cache, prompts, sampler=FixedSchedule(4), evaluate=evaluate
        )
        assert torch.equal(plain.tokens, near.tokens)
        assert torch.equal(plain.tokens, far.tokens)
        assert (far.nfe <= near.nfe).all()
        saved += int((near.nfe - far.nfe).sum())
    assert saved > 0


@pytest.mark.parametrize(
    ("sampler", "cache", "family"),
    [(FixedSchedule(4), DualCache(), "llada"), (Prophet(answer_start=0), NoCache(), "llada"),
     (FixedSchedule(4), FreeCache(), "dream")],
    ids=str,
)  # fmt: skip
def test_drafts_end_with_the_block_where_the_next_depends_on_when_it_is_opened(
    sampler: Any, cache: CachePolicy, family: str
) -> None:
    _, near, far = by_reach(family, cache, PROMPTS[:1], sampler=sampler)
    assert torch.equal(near.tokens, far.tokens)
    assert torch.equal(near.query_positions, far.query_positions)

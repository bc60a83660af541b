from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, LAW_OPTIONS, Spied, load_tiny, tiny
from toys import DriftingModel

from dllm_decode import (
    CachePolicy,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    SelfVerify,
    StepEvent,
    Trace,
    decode,
)
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule, Prophet

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
TINY_PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]


def tiny_in(family: str, dtype: torch.dtype) -> MaskedTransformer:
    return load_tiny(family, dtype=dtype, **LAW_OPTIONS[family])


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_state_a_forward_is_identical_in_low_precision(family: str, cache: CachePolicy) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_in(family, dtype)
        traces = [Trace(), Trace()]
        options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
        plain, verified = (
            decode(
                model,
                TINY_PROMPTS[:1],
                FixedSchedule(8),
                verifier=verifier,
                observers=[trace],
                **options,
            )
            for verifier, trace in zip(
                (NoVerifier(), SelfVerify(4, "sequential")), traces, strict=True
            )
        )
        assert torch.equal(plain.tokens, verified.tokens)
        assert torch.equal(traces[0].steps[0], traces[1].steps[0])
        torch.testing.assert_close(
            traces[0].confidences[0], traces[1].confidences[0], rtol=0, atol=0, equal_nan=True
        )
        assert verified.forwards > plain.forwards


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=repr)
@pytest.mark.parametrize("evaluate", ["batch", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_several_states_a_forward_differ_only_where_rounding_decides(
    family: str, dtype: torch.dtype, evaluate: Any
) -> None:
    model = tiny_in(family, dtype)
    for cache in (NoCache(), DualCache()):
        events: dict[str, dict[int, list[StepEvent]]] = {"plain": {}, "verified": {}}
        for name, verifier in (("plain", NoVerifier()), ("verified", SelfVerify(4, evaluate))):
            for row, prompt in enumerate(TINY_PROMPTS):
                found = events[name].setdefault(row, [])
                decode(
                    model, [prompt], FixedSchedule(8), verifier=verifier, cache=cache,
                    gen_length=16, block_length=8, stop_at_eos=False, observers=[found.append],
                )  # fmt: skip
        for row in range(len(TINY_PROMPTS)):
            assert_same_or_certified(events["plain"][row], events["verified"][row])


def assert_same_or_certified(plain: list[StepEvent], verified: list[StepEvent]) -> None:
    for ours, theirs in zip(plain, verified, strict=True):
        if torch.equal(ours.after.tokens, theirs.after.tokens):
            continue
        assert torch.equal(ours.before.tokens, theirs.before.tokens)
        finite = ours.view.logits.isfinite()
        error = (ours.view.logits - theirs.view.logits)[finite].abs().max().double()
        confidence = ours.view.confidence.masked_fill(~ours.view.eligible, 0).double()
        first, second = confidence.topk(2).values[0]
        token_gap = ours.view.top_k(2).logits.diff(dim=-1).abs().min().double()
        assert min((first / second).log() / 2, token_gap) <= 2 * error
        return


def assert_same_keys(verifier: SelfVerify, options: dict[str, Any]) -> None:
    """Compares the slots of each prompt and of its first block: there are no drafts left in them.

    One prompt at a time, since rows take the places of others that have ended.
    """
    for prompt in TINY_PROMPTS:
        plain, spied = Spied(tiny("llada")), Spied(tiny("llada"))
        decode(plain, [prompt], FixedSchedule(8), **options)
        decode(spied, [prompt], FixedSchedule(8), verifier=verifier, **options)
        keys = [each.calls[-1].kv_cache.keys[:, 0] for each in (plain, spied)]
        slots = slice(0, len(prompt) + 8)
        torch.testing.assert_close(keys[0][:, :, slots], keys[1][:, :, slots])


@pytest.mark.parametrize("cache", [DualCache(), FreeCache("clean")], ids=repr)
def test_the_memory_of_the_drafts_is_their_own(cache: CachePolicy) -> None:
    plain, spied = Spied(tiny("llada")), Spied(tiny("llada"))
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    decode(plain, TINY_PROMPTS, FixedSchedule(8), **options)
    decode(spied, TINY_PROMPTS, FixedSchedule(8), verifier=SelfVerify(3), **options)
    assert len(spied.held) == 3 * len(TINY_PROMPTS)
    assert spied.memories[0].num_bytes == 3 * plain.memories[0].num_bytes
    assert_same_keys(SelfVerify(3), options)
    wide = [call for call in spied.calls if len(call.tokens) > 3]
    assert wide
    for call in wide:
        rows = spied.rows_of(call)
        assert len(rows.unique()) == len(rows), "two states share their slots"


@pytest.mark.parametrize("cache", [DualCache(), PrefixCache(), FreeCache("clean")], ids=repr)
def test_the_branches_of_a_tree_share_the_memory_of_their_row(cache: CachePolicy) -> None:
    spied = Spied(tiny("llada"))
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    decode(spied, TINY_PROMPTS, FixedSchedule(8), verifier=SelfVerify(3, "tree"), **options)
    length = 9 + 16
    assert len(spied.held) == len(TINY_PROMPTS)
    tree = [call for call in spied.calls if call.kv_cache.keys.shape[3] > length]
    columns = [call.tokens.shape[1] // 3 for call in tree if call.tokens.shape[1] % 3 == 0]
    assert max(call.kv_cache.keys.shape[3] for call in tree) == length + 2 * max(columns)
    assert_same_keys(SelfVerify(3, "tree"), options)


def test_no_branch_of_a_tree_sees_another() -> None:
    model, seen = tiny("llada"), []

    class Meddling(Spied):
        """Changes the tokens of every second branch, and keeps the logits of the others."""

        def predict(self, inputs: Any) -> torch.Tensor:
            packed = inputs.attend is not None and inputs.attend.shape[1] > 1
            if packed and not seen:
                clean = self.model.predict(inputs)
                width = inputs.wanted.shape[1] // 3
                columns = inputs.tokens.shape[1] // 3
                tokens = inputs.tokens.clone()
                tokens[:, columns : 2 * columns] = 99
                changed = self.model.predict(replace(inputs, tokens=tokens))
                seen.append((clean.unflatten(1, (3, width)), changed.unflatten(1, (3, width))))
            return super().predict(inputs)

    decode(
        Meddling(model), TINY_PROMPTS, FixedSchedule(8), verifier=SelfVerify(3, "tree"),
        gen_length=16, block_length=8, stop_at_eos=False, cache=DualCache(),
    )  # fmt: skip
    ((clean, changed),) = seen
    torch.testing.assert_close(clean[:, [0, 2]], changed[:, [0, 2]], rtol=0, atol=0)
    assert (clean[:, 1] - changed[:, 1]).abs().max() > 0.01


def test_every_column_of_every_draft_is_on_the_bill() -> None:
    spied = Spied(tiny("llada"))
    out = decode(
        spied, TINY_PROMPTS, FixedSchedule(8), verifier=SelfVerify(4), cache=DualCache(),
        gen_length=16, block_length=8, stop_at_eos=False,
    )  # fmt: skip
    assert out.forwards == len(spied.calls)
    assert int(out.query_positions.sum()) == sum(call.tokens.numel() for call in spied.calls)
    assert max(len(call.tokens) for call in spied.calls) == 12


def test_a_draft_that_would_finish_the_block_is_not_looked_at() -> None:
    out = decode(
        DriftingModel(), [[1]], FixedSchedule(2), verifier=SelfVerify(8), gen_length=2,
        block_length=2, stop_at_eos=False,
    )  # fmt: skip
    assert out.query_positions.tolist() == [3 * 2]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("evaluate", ["batch", "tree"])
@pytest.mark.parametrize(
    ("family", "cache"),
    [("sdar", PrefixCache()), ("sdar", FreeCache("clean")), ("sdar", DualCache()),
     ("sdar", NoCache()), ("llada", NoCache())],
    ids=str,
)  # fmt: skip
def test_a_finished_block_that_was_foreseen_spares_the_first_forward_of_the_next(
    family: str, cache: CachePolicy, evaluate: Any
) -> None:
    options: Any = {
        "gen_length": 24, "block_length": 4, "cache": cache, "stop_at_eos": False,
    }  # fmt: skip
    saved = 0
    for prompts in (TINY_PROMPTS, TINY_PROMPTS[:1]):
        plain = decode(tiny(family), prompts, FixedSchedule(4), **options)
        near, far = (
            decode(
                tiny(family), prompts, FixedSchedule(4), verifier=SelfVerify(6, evaluate, reach),
                **options,
            )
            for reach in ("block", "next")
        )  # fmt: skip
        assert torch.equal(plain.tokens, near.tokens)
        assert torch.equal(plain.tokens, far.tokens)
        assert (far.nfe <= near.nfe).all()
        saved += int((near.nfe - far.nfe).sum())
    assert saved > 0


@pytest.mark.parametrize(
    ("sampler", "cache", "family"),
    [(FixedSchedule(4), DualCache(), "llada"), (Prophet(), NoCache(), "llada"),
     (FixedSchedule(4), FreeCache("clean"), "dream")],
    ids=str,
)  # fmt: skip
def test_drafts_end_with_the_block_where_the_next_depends_on_when_it_is_opened(
    sampler: Any, cache: CachePolicy, family: str
) -> None:
    options: Any = {
        "gen_length": 24, "block_length": 4, "cache": cache, "stop_at_eos": False,
    }  # fmt: skip
    near, far = (
        decode(
            tiny(family), TINY_PROMPTS[:1], sampler, verifier=SelfVerify(6, "batch", reach),
            **options,
        )
        for reach in ("block", "next")
    )  # fmt: skip
    assert torch.equal(near.tokens, far.tokens)
    assert torch.equal(near.query_positions, far.query_positions)

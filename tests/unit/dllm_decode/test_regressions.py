"""Defects of an earlier engine, each as small as it was found."""

import random
from typing import Any

import pytest
import torch
from fuzzed_cases import StopAt, model_of
from tiny_models import Peaked, tiny
from toys import tiny_target

from dllm_decode import (
    AdaptiveBlocks,
    ARVerify,
    BlockSchedule,
    CachePolicy,
    DelayedCache,
    FreeCache,
    MultiBlock,
    NoCache,
    PathSearch,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
    decode,
    decode_many,
)
from dllm_decode.core.observers import StepEvent, final_tokens
from samplers import ConfidenceThreshold, FixedSchedule, JointThreshold, Sampler

EDITING = JointThreshold(0.5, 0.0, 16)
OPTIONS: dict[str, Any] = {"gen_length": 24, "block_length": 8, "stop_at_eos": False}


def prompts(seed: int, *most: int) -> list[list[int]]:
    """Returns prompts of 1 to so many random tokens."""
    drawn = random.Random(seed)
    return [[drawn.randint(2, 300) for _ in range(drawn.randint(1, number))] for number in most]


def alone_and_together(
    model: Any, prompt: list[int], **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the answer to a prompt, alone and next to a long one."""
    alone = decode(model, [prompt], ConfidenceThreshold(0.5), **{**OPTIONS, **options})
    together = decode(
        model, [prompt, [*range(2, 22)]], ConfidenceThreshold(0.5), **{**OPTIONS, **options}
    )
    return alone.tokens[0], together.tokens[0]


def test_tokens_that_are_called_final_never_change() -> None:
    """A streamer was given tokens that an editing sampler replaced, and stop strings saw them."""
    shown: list[list[int]] = []
    changed = 0

    def watch(event: StepEvent) -> None:
        nonlocal changed
        shown.extend(final_tokens(event.rows, event.after, is_final=event.is_final))
        held = ~event.before.masked & event.before.answer
        changed += int((held & (event.before.tokens != event.after.tokens)).sum())

    for seed in range(10):
        shown.clear()
        model = Peaked(tiny("llada"), 8.0)
        out = decode(model, prompts(seed, 12), EDITING, observers=[watch], **OPTIONS)
        (answer,) = out.answers()
        assert all(tokens == list(answer)[: len(tokens)] for tokens in shown)
    assert changed


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("sampler", "blocks"),
    [
        (EDITING, {}),
        (ConfidenceThreshold(0.6), {"blocks": AdaptiveBlocks((145, 163, 192), 0.02, 3, 0.9)}),
        (ConfidenceThreshold(0.6), {"blocks": MultiBlock(4, 0.05, 0.3)}),
    ],
    ids=["edits", "adaptive", "several blocks"],
)
def test_self_verify_of_one_step_is_plain_decoding(
    sampler: Sampler, blocks: dict[str, BlockSchedule]
) -> None:
    """It skipped edits, and what schedules open and commit after the logits are known."""
    options = {"gen_length": 24, "stop_at_eos": False, **blocks}
    for seed in range(8):
        model, asked = Peaked(tiny("llada"), 8.0), prompts(seed, 12, 12)
        plain = decode(model, asked, sampler, **options)
        verified = decode(model, asked, sampler, verifier=SelfVerify(1), **options)
        assert torch.equal(plain.tokens, verified.tokens)
        assert torch.equal(plain.nfe, verified.nfe)


def test_two_forwards_a_draft_overwrite_no_given_token() -> None:
    """Tokens that were given after open positions were overwritten; now they are refused."""
    model = tiny("llada")
    verifier = ARVerify(tiny_target(model.vocab_size), drafting=PathSearch(num_forwards=2))
    with pytest.raises(ValueError, match="A template must give the beginning of an answer"):
        decode(
            model, [[5, 6]], FixedSchedule(4), verifier=verifier, gen_length=8,
            templates=[[model.mask_id, 7]],
        )  # fmt: skip


def test_an_official_entry_after_a_short_prompt_does_not_look_at_the_neighbours() -> None:
    """On a block-causal model, a prompt shorter than a block lost column 0."""
    model = Peaked(tiny("fast_dllm_v2"), 10.0)
    cache = PrefixCache(entry="official")
    for seed in range(12):
        (prompt,) = prompts(seed, 3)
        options = {"gen_length": 16, "block_length": 4}
        alone, together = alone_and_together(model, prompt, cache=cache, **options)
        assert torch.equal(alone, together)


def test_a_row_that_joins_is_truncated_at_a_given_eos() -> None:
    """`decode_many` forgot an EOS that was given in a block without open positions."""
    model = tiny("llada")
    mask, eos = model.mask_id, model.eos_ids[0]
    options: dict[str, Any] = {
        "gen_length": 12, "block_length": 4, "stop_at_eos": False, "truncate_at_eos": True,
        "templates": [[mask] * 4 + [30] * 8, [20, 21, eos, 23], []],
    }  # fmt: skip
    asked = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
    whole = decode(model, asked, ConfidenceThreshold(0.9), **options).tokens
    many = [*decode_many(model, asked, ConfidenceThreshold(0.9), num_rows=2, **options)]
    assert torch.equal(torch.cat([out.tokens for out in many]), whole)
    assert whole[1].tolist() == [20, 21, eos, 23, *[eos] * 8]


def test_a_sub_block_cache_keeps_the_column_before_a_block_that_follows_one_token() -> None:
    """On a shifted model, column 0 was taken for the block's first column."""
    model = Peaked(tiny("dream"), 20.0)
    for seed in range(8):
        (prompt,) = prompts(seed, 1)
        alone, together = alone_and_together(model, prompt, cache=SubBlockCache())
        assert torch.equal(alone, together)


@pytest.mark.parametrize(
    "inner",
    [DelayedCache(4, 1), SettledCache(), SubBlockCache(), PipelineCache(4, 1, 2), FreeCache()],
    ids=repr,
)
def test_a_window_without_a_tail_goes_around_policies_that_choose_columns_by_row(
    inner: CachePolicy,
) -> None:
    """An index was out of range."""
    model = Peaked(tiny("llada"), 20.0)
    for seed in range(6):
        out = decode(
            model, prompts(seed, 12, 12, 12), ConfidenceThreshold(0.5), gen_length=32,
            block_length=4, cache=SuffixWindow(inner, seed % 4, tail=0),
        )  # fmt: skip
        assert not (out.tokens == model.mask_id).any()


@pytest.mark.parametrize("inner", [NoCache(), PrefixCache()], ids=repr)
def test_a_window_s_tail_is_the_row_s_own(inner: CachePolicy) -> None:
    """In `decode_many` the column that stays was the last one of the newest row."""
    model = Peaked(tiny("llada"), 3.0)
    # The second answer ends in the first block, so that the third prompt takes its place.
    templates = [[], [20, 21, 22, model.mask_id, model.eos_ids[0]], []]
    options: dict[str, Any] = {
        "gen_length": 24, "block_length": 4, "cache": SuffixWindow(inner, 2),
        "templates": templates,
    }  # fmt: skip
    for seed in range(8):
        asked = prompts(seed, 12, 12, 12)
        whole = decode(model, asked, ConfidenceThreshold(0.5), **options)
        many = [*decode_many(model, asked, ConfidenceThreshold(0.5), num_rows=2, **options)]
        assert torch.equal(torch.cat([out.tokens for out in many]), whole.tokens)


@pytest.mark.parametrize("seed", [8, 9, 10])
def test_given_tokens_that_stop_a_row_do_not_end_it_before_its_first_step(seed: int) -> None:
    """A row that joined while `SelfVerify` let it wait was ended at once."""
    model = model_of("toy", seed % 4, 4.0, 0, ())
    options: dict[str, Any] = {
        "gen_length": 12, "block_length": 4, "stop_at_eos": False, "verifier": SelfVerify(3),
        "stop": StopAt(frozenset({20})), "templates": [[], [], [5, 20]],
    }  # fmt: skip
    prompts = [[1 + seed % 7], [2, 3], [4, seed % 20, 6]]
    sampler = ConfidenceThreshold(0.4)
    whole = decode(model, prompts, sampler, **options)
    for row, one in enumerate(decode_many(model, prompts, sampler, num_rows=2, **options)):
        assert torch.equal(one.tokens[0], whole.tokens[row])

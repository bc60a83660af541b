"""Drafts without a mask predictor: copies, and loading a causal model alone."""

from typing import Any

import pytest
import torch
from toys import HashModel, answers_of, draft_start_of, never, paths_of, tiny_target

from dllm_decode import (
    ARVerify,
    CausalTarget,
    Draft,
    Drafting,
    DraftLength,
    Gains,
    PathSearch,
    Pool,
    Recycling,
    as_causal_target,
    decode,
    generate,
    load_model,
    load_target,
)
from dllm_decode.models.targets.causal_only import CausalOnly
from samplers import FixedSchedule

UNDRAFTED = (Pool(3, 1, 4), Pool(3, 3, 4), Recycling(3))
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def drafted(pool: Pool, texts: list[list[int]]) -> Draft:
    lengths = torch.full((len(texts),), 7)
    return pool.draft(draft_start_of(texts), torch.zeros(len(texts), 7, 0), lengths)


def copies(pool: Pool, texts: list[list[int]]) -> list[list[int]]:
    draft = drafted(pool, texts)
    return [
        row[:num] for row, num in zip(draft.tokens.tolist(), draft.counts.tolist(), strict=True)
    ]


def paths(pool: Pool, text: list[int]) -> list[list[int]]:
    draft = drafted(pool, [text])
    assert int(draft.num_broken()) == 0
    return paths_of(draft)


def test_a_copy_begins_where_most_of_the_last_tokens_stood_last() -> None:
    texts = [
        [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 8, 2, 3],  # twice: the latest place
        [1, 2, 3, 4, 7, 3, 9, 2, 3],  # two tokens rather than the later one token
        [1, 2, 3],  # nowhere
        [5, 6, 5, 6],  # a repetition goes on
        [5],
    ]
    assert copies(Pool(3, 1, 4), texts) == [[5, 6, 7, 8], [4, 7, 3, 9], [], [5, 6, 5, 6], []]
    assert copies(Pool(2, 1, 3), texts[:2]) == [[5, 6, 7], [9, 2, 3]]


def test_different_copies_make_a_tree() -> None:
    text = [3, 5, 6, 7, 8, 3, 5, 9, 7, 1, 2, 3, 4, 4, 4, 2, 3, 5, 6, 7, 1, 3]
    # Before the last 3 is a 1, so that one token is looked for, and the latest place comes first.
    assert paths(Pool(3, 2, 3), text) == [[5], [5, 6], [5, 6, 7], [4], [4, 4], [4, 4, 4]]
    # The next place has the same beginning, and the first place has the same copy as the latest.
    tree = [[5], [5, 6], [5, 6, 7], [4], [4, 4], [4, 4, 4], [5, 9], [5, 9, 7]]
    assert paths(Pool(3, 3, 3), text) == tree
    assert paths(Pool(3, 9, 3), text) == tree


def test_further_texts_are_copied_up_to_their_end() -> None:
    pool = Pool(3, 1, 4).fit([[7, 1, 2, 3], torch.tensor([1, 2, 4, 5, 6, 7, 8])])
    assert copies(pool, [[9, 1, 2], [6], [9]]) == [[4, 5, 6, 7], [7, 8], []]
    assert copies(pool, [[1, 2, 9, 1, 2]]) == [[9, 1, 2, 9]]
    assert copies(pool.fit([[7, 1, 2, 3]]), [[9, 1, 2]]) == [[3]]
    assert repr(pool) == "Pool(order=3, size=1, length=4)"
    for sequence in ([1, -1], [0.5], "text"):
        with pytest.raises(ValueError, match="A sequence must hold token ids"):
            Pool().fit([sequence])  # type: ignore[list-item]


def test_a_text_of_unknown_ids_changes_no_answer() -> None:
    target = tiny_target(seed=2)
    answers = answers_of(target, PROMPTS, 12)
    texts = [
        [*prompt, *answer[:2], 10_000] for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]
    out = decode(
        HashModel(), PROMPTS, FixedSchedule(4), gen_length=12, block_length=4,
        verifier=ARVerify(target, drafting=Pool().fit(texts)),
    )  # fmt: skip
    assert out.tokens.tolist() == answers
    assert (out.accepted >= 2).all()


@pytest.mark.parametrize("drafting", UNDRAFTED, ids=repr)
def test_no_forward_of_the_mask_predictor_is_run(drafting: Drafting) -> None:
    """Every draft began with such a forward, whose logits `Pool` does not read."""
    model, target = HashModel(), tiny_target(seed=2)
    model.predict = never  # type: ignore[method-assign]
    gains = Gains()
    out = decode(
        model, PROMPTS, FixedSchedule(4), gen_length=12, block_length=4, observers=[gains],
        verifier=ARVerify(target, DraftLength(4, 4), drafting),
    )  # fmt: skip
    assert out.tokens.tolist() == answers_of(target, PROMPTS, 12)
    assert out.nfe.tolist() == [0, 0, 0]
    assert (out.target_nfe > 0).all()
    # A gain for each forward of the target, though there is none of the mask predictor.
    for row, gain in gains.by_row().items():
        assert 2 < len(gain.per_forward) <= int(out.target_nfe[row])
        assert max(gain.per_forward) <= 5


@pytest.mark.parametrize("drafting", UNDRAFTED, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_causal_model_alone_writes_what_it_writes_for_a_drafter(
    drafting: Drafting, temperature: float
) -> None:
    model, tokenizer = load_model("mini-long-ar", family="causal", dtype="float64", device="cpu")
    drafter, words = load_model("mini-long", dtype="float64", device="cpu")
    assert isinstance(model, CausalOnly)
    texts = ["anna has 32 coins and in january anna spends 3 . how many coins do they have ?"]
    options: Any = {"gen_length": 32, "temperature": temperature}
    alone = generate(
        model, tokenizer, texts, verifier=ARVerify(as_causal_target(model), drafting=drafting),
        **options,
    )  # fmt: skip
    target = load_target("mini-long-ar", words, dtype=torch.float64, device="cpu")
    drafted = generate(
        drafter, words, texts, verifier=ARVerify(target, drafting=PathSearch()), **options
    )
    assert alone.texts == drafted.texts
    assert alone.texts[0]


def test_a_causal_model_alone_names_what_asks_it_for_masks() -> None:
    target = CausalTarget(tiny_target().network, name="small", num_shared_ids=24)
    model = CausalOnly(target)
    assert as_causal_target(model) is target
    for options in ({}, {"verifier": ARVerify(target)}):
        with pytest.raises(ValueError, match=r"small must be asked nothing, .*Pool\(\)"):
            decode(model, [[1, 2]], FixedSchedule(4), gen_length=4, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask_id must be left out for mini-long-ar"):
        load_model("mini-long-ar", family="causal", mask_id=5, device="cpu")

"""Drafts without a mask predictor: copies, iterations of the target, and loading such a model."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from toys import HashModel, answers_of, never, tiny_target

from dllm_decode import (
    ARVerify,
    Canvas,
    CausalTarget,
    DecodeConfig,
    Drafting,
    DraftLength,
    Gains,
    Jacobi,
    PathSearch,
    PromptLookup,
    as_causal_target,
    decode,
    generate,
    load_model,
    load_target,
)
from dllm_decode.core.rows import Request, Row
from dllm_decode.models.targets.causal_only import CausalOnly
from dllm_decode.verify.drafts import Beginning
from samplers import FixedSchedule

UNDRAFTED = (PromptLookup(2, 4), Jacobi(4))
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def looked_up(texts: list[list[int]], ngram: int, length: int) -> list[list[int]]:
    rows = [Row.of(Request(0, text, DecodeConfig(gen_length=9)), 1, mask_id=99) for text in texts]
    width = max(map(len, texts)) + 9
    canvas = Canvas.blank(rows, width=width, mask_id=99, eos_ids=(98,))
    first = torch.tensor([len(text) for text in texts])
    beginning = Beginning(canvas, first, first, 0.0)
    lengths = torch.full_like(first, 7)
    draft = PromptLookup(ngram, length).draft(beginning, torch.zeros(len(texts), 7, 0), lengths)
    return [
        row[:num] for row, num in zip(draft.tokens.tolist(), draft.counts.tolist(), strict=True)
    ]


def test_a_copy_begins_where_most_of_the_last_tokens_stood_last() -> None:
    texts = [
        [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 8, 2, 3],  # twice: the latest place
        [1, 2, 3, 4, 7, 3, 9, 2, 3],  # two tokens rather than the later one token
        [1, 2, 3],  # nowhere
        [5, 6, 5, 6],  # a repetition goes on
        [5],
    ]
    assert looked_up(texts, 2, 4) == [[5, 6, 7, 8], [4, 7, 3, 9], [], [5, 6, 5, 6], []]
    assert looked_up(texts[:2], 1, 3) == [[5, 6, 7], [9, 2, 3]]


@pytest.mark.parametrize("drafting", UNDRAFTED, ids=repr)
def test_no_forward_of_the_mask_predictor_is_run(drafting: Drafting) -> None:
    """Every draft began with such a forward, whose logits `PromptLookup` does not read."""
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


def test_an_iteration_of_the_target_ends_sooner_than_one_token_a_forward() -> None:
    """A target that heeds the position alone is at its fixed point after one forward."""
    target = tiny_target(seed=2)
    read = type(target).read

    def counting(
        past: Any, *args: Any, num_logits: int, first_logits: Tensor, **kwargs: Any
    ) -> Any:
        options: Any = {"num_logits": num_logits, "first_logits": first_logits, **kwargs}
        reading = read(target, past, *args, **options)
        positions = (past.lengths + first_logits)[:, None] + torch.arange(num_logits)
        return reading._replace(logits=9.0 * one_hot(positions, 24).double())

    target.read = counting  # type: ignore[method-assign]
    out = decode(
        HashModel(), [[1, 2]], FixedSchedule(4), gen_length=12, block_length=4,
        verifier=ARVerify(target, DraftLength(4, 4), Jacobi(4)),
    )  # fmt: skip
    assert out.tokens.tolist() == [list(range(1, 13))]
    # One token, since zeros were drafted; five; one, since the last was repeated; five.
    assert out.target_nfe.tolist() == [4]
    assert out.accepted.tolist() == [8]


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
        with pytest.raises(ValueError, match=r"small must be asked nothing, .*PromptLookup\(\)"):
            decode(model, [[1, 2]], FixedSchedule(4), gen_length=4, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask_id must be left out for mini-long-ar"):
        load_model("mini-long-ar", family="causal", mask_id=5, device="cpu")

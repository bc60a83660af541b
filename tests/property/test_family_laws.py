"""Every family through the engine, against a loop that knows no cache, session or geometry."""

import pytest
import torch
from tiny_models import EVERY_FAMILY, LAW_OPTIONS, load_tiny, tiny
from torch import Tensor

from dllm_decode import ForwardInputs, FreeCache, NoCache, decode
from dllm_decode.models import MaskedTransformer
from samplers import FixedSchedule

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444]]
GEN_LENGTH, BLOCK_LENGTH = 10, 4
OPTIONS = {"gen_length": GEN_LENGTH, "block_length": BLOCK_LENGTH, "stop_at_eos": False}
EVERY = pytest.mark.parametrize("family", EVERY_FAMILY)


# The engine cannot tell families of one kind apart.
def logits_of(model: MaskedTransformer, tokens: list[int]) -> Tensor:
    """What predicts each column of a text that is all there is."""
    ids, length = torch.tensor([tokens]), len(tokens)
    columns = torch.arange(length)[None]
    attend = None
    if model.causal_block_length:
        block = torch.arange(length) // model.causal_block_length
        attend = (block[:, None] >= block)[None]
    logits = model.predict(ForwardInputs(ids, columns, columns, attend=attend))[0]
    if model.logit_shift:
        logits = torch.cat((logits[:1], logits[:-1]))
    logits[:, [model.mask_id, *model.banned_ids]] = -torch.inf
    return logits


def one_by_one(model: MaskedTransformer, prompt: list[int]) -> list[int]:
    """Commits the most confident position of the open block, until nothing is masked."""
    start, inner = len(prompt), model.causal_block_length
    text = [*prompt, *[model.mask_id] * GEN_LENGTH]
    # A block-causal model sees its last block whole, masks behind the answer included.
    text += [model.mask_id] * (-len(text) % inner if inner else 0)
    first = start
    while first < len(text):
        last = first - (first % inner if inner else 0) + BLOCK_LENGTH
        last = last if inner else first + BLOCK_LENGTH
        last = min(last, len(text))
        while model.mask_id in text[first:last]:
            seen = text[:last] if inner else text
            probabilities = logits_of(model, seen).softmax(-1)
            best = max(
                (c for c in range(first, last) if text[c] == model.mask_id),
                key=lambda c: float(probabilities[c].max()),
            )
            text[best] = int(probabilities[best].argmax())
        first = last
    return text[start : start + GEN_LENGTH]


@EVERY
def test_one_token_a_step_is_the_plain_loop(family: str) -> None:
    model = tiny(family)
    out = decode(model, PROMPTS, FixedSchedule(BLOCK_LENGTH), cache=NoCache(), **OPTIONS)
    for row, prompt in enumerate(PROMPTS):
        assert out.tokens[row].tolist() == one_by_one(model, prompt)


def test_all_four_kinds_of_attention_and_shift_are_among_the_families() -> None:
    kinds = {
        (tiny(family).logit_shift, tiny(family).causal_block_length > 0) for family in EVERY_FAMILY
    }
    assert len(kinds) == 4
    assert all(LAW_OPTIONS[family].get("block_length", 4) == 4 for family in EVERY_FAMILY)


@pytest.mark.parametrize("family", ["a2d_qwen3", "a2d_llama"])
def test_an_a2d_model_may_be_block_causal(family: str) -> None:
    model = load_tiny(family, dtype=torch.float64, block_length=4)
    sampler = FixedSchedule(BLOCK_LENGTH)
    for cache in (NoCache(), FreeCache("clean")):
        out = decode(model, PROMPTS, sampler, cache=cache, **OPTIONS)
        for row, prompt in enumerate(PROMPTS):
            assert out.tokens[row].tolist() == one_by_one(model, prompt)

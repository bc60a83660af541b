from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fuzzed_cases import model_of
from jaxtyping import Float
from plugins_under_test import plugin, view_with
from torch import Tensor
from toys import HashModel

from dllm_decode import (
    S2D2,
    CachePolicy,
    DualCache,
    FreeCache,
    MinimumSpan,
    NoCache,
    NoVerifier,
    PrefixCache,
    ScoreThreshold,
    decode,
    decode_many,
)
from dllm_decode.core.model import ForwardInputs, MaskPredictor
from dllm_decode.verify import Router
from samplers import ConfidenceThreshold, JointThreshold, Sampler, View
from samplers.base import Decision

FAMILIES = ("sdar", "llada2_moe", "fast_dllm_v2")
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def read_alone(model: MaskPredictor, tokens: list[int], start: int) -> Float[Tensor, " V"]:
    """Predicts the next token. From column `start` on, a token sees all tokens up to itself.

    Before `start`, a token sees its own block and the blocks before it.
    """
    input_ids = tokens if model.logit_shift else [*tokens, model.mask_id]
    columns = torch.arange(len(input_ids))
    blocks = columns // model.causal_block_length
    attend = torch.where(
        columns[:, None] < start, blocks[:, None] >= blocks, columns[:, None] >= columns
    )
    logits = model.predict(
        ForwardInputs(
            tokens=torch.tensor([input_ids]), positions=columns[None], wanted=columns[None, -1:],
            attend=attend[None],
        )
    )  # fmt: skip
    return logits[0, 0]


def test_costs_count_the_forwards_of_verification() -> None:
    never, plain, always = (
        decode(
            model_of("sdar", 0, 2.0, 4, ()), [[1, 2, 3, 4]], ConfidenceThreshold(1.0),
            verifier=verifier, cache=FreeCache(), gen_length=8, stop_at_eos=False,
        )
        for verifier in (S2D2(MinimumSpan(5)), NoVerifier(), S2D2(MinimumSpan(1)))
    )  # fmt: skip
    assert torch.equal(never.tokens, plain.tokens)
    assert never.nfe.tolist() == plain.nfe.tolist() == [8]
    assert never.query_positions.tolist() == plain.query_positions.tolist()
    assert never.drafted.tolist() == [0]
    rounds = always.nfe.item() // 2
    assert always.nfe.item() == 2 * rounds == always.forwards
    # Each block's first forward also computes the 4 columns before it; verification computes 2 * 4.
    assert always.query_positions.item() == 2 * 4 + rounds * (4 + 2 * 4)


def test_hysteresis_goes_on_until_the_lower_score_and_begins_anew_with_a_row() -> None:
    # Rows 0 and 2 are certain of their tokens; row 1 is uniform.
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]]).double().expand(2, -1)
    view = view_with(torch.stack([certain, torch.zeros(2, 4).double(), certain]))
    verified = torch.tensor([False, True, True])
    router = ScoreThreshold(1.0, -1.5)
    chosen, state = router.verifies(view, view.masked, verified)
    assert chosen.tolist() == state.tolist() == [False, True, True]
    chosen, _ = ScoreThreshold(0.9, -0.4).verifies(view, view.masked, verified)
    assert chosen.tolist() == [True, False, True]
    # A full block has nothing to verify.
    assert not router.verifies(view, ~view.masked, verified)[0].any()


@dataclass(frozen=True)
class Always(Router[None]):
    """Chooses every row, also those whose block is full."""

    def verifies(self, view: View, span: Tensor, state: None) -> tuple[Tensor, None]:
        return torch.ones_like(span[:, 0]), None


def test_a_full_block_that_a_router_chooses_is_settled_beside_a_row_that_verifies() -> None:
    """The sampler's settle was dropped, and the row ended with an error."""
    model = model_of("sdar", 1, 2.0, 4, ())
    options: Any = {"gen_length": 12, "stop_at_eos": False, "verifier": S2D2(Always())}
    sampler = JointThreshold(0.9, 0.5, 4)
    together = decode(model, PROMPTS, sampler, **options)
    for row, alone in enumerate(decode_many(model, PROMPTS, sampler, num_rows=1, **options)):
        assert torch.equal(together.tokens[row], alone.tokens[0])
        assert together.nfe[row] == alone.nfe[0]


def test_wrong_use_is_refused_by_name() -> None:
    options: Any = {"verifier": S2D2(), "gen_length": 8, "block_length": 4}
    bidirectional = HashModel()
    with pytest.raises(ValueError, match=r"needs a block-causal model.*Use SelfVerify"):
        decode(bidirectional, [[1]], ConfidenceThreshold(), **options)
    with pytest.raises(ValueError, match="top_p, top_k"):
        decode(model_of("sdar", 0, 2.0, 4, ()), [[1]], ConfidenceThreshold(), top_k=3, **options)


def test_a_sampler_that_breaks_its_contract_is_named_not_the_verifier() -> None:
    everywhere = plugin(
        Sampler, step=lambda self, view, state: (Decision(torch.ones_like(view.masked)), state)
    )
    with pytest.raises(RuntimeError, match=r"Own\(.*must commit eligible positions only"):
        decode(
            model_of("sdar", 0, 2.0, 4, ()), PROMPTS, everywhere, verifier=S2D2(MinimumSpan(1)),
            gen_length=8, block_length=4,
        )  # fmt: skip


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize(("attend", "temperature"), [("blocks", 0.7), ("causal", 0.0)])
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_probability_of_a_verified_token_is_that_of_reading_from_left_to_right(
    family: str, cache: CachePolicy, attend: Any, temperature: float
) -> None:
    model, num_commits = model_of(family, 0, 2.0, 4, ()), 0
    out = decode(
        model, PROMPTS, ConfidenceThreshold(0.5), verifier=S2D2(MinimumSpan(1), attend),
        gen_length=12, block_length=4, cache=cache, temperature=temperature, return_logprobs=True,
    )  # fmt: skip
    assert 0 < out.accepted.sum() < out.drafted.sum()
    for row, prompt in enumerate(PROMPTS):
        text = [*prompt, *out.tokens[row].tolist()]
        for position in (out.commits.steps[row] >= 0).nonzero().flatten().tolist():
            column = len(prompt) + position
            start = column - column % 4 if attend == "blocks" else 0
            logits = read_alone(model, text[:column], start)
            logits[[model.mask_id, *model.banned_ids]] = -torch.inf
            for values, by in (
                (out.commits.logprobs, temperature or 1.0),
                (out.commits.model_logprobs, 1.0),
            ):
                expected = (logits / by).log_softmax(-1)[text[column]]
                torch.testing.assert_close(values[row, position], expected)
            num_commits += 1
    assert num_commits > 20

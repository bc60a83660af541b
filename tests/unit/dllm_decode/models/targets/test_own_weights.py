"""A model that verifies its own drafts writes what it writes causally, one token at a time."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import EVERY_FAMILY, MODELS, load_tiny
from torch import Tensor
from toys import written_alone

from dllm_decode import (
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    FreeCache,
    NoCache,
    Tree,
    as_causal_target,
    decode,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.families import FAMILIES
from dllm_decode.verify.drafts import DraftStart
from samplers import ConfidenceThreshold
from samplers.logits.noise import row_keys

CAUSAL_TOO = ("nemotron_labs_diffusion", "a2d_qwen3", "a2d_qwen2", "a2d_llama")
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1], [1, 4, 1, 4, 2]]


def alone(model: MaskedTransformer, prompt: list[int]) -> list[int]:
    """Returns twelve tokens that a model writes causally, by the slow loop."""

    def causally(*, input_ids: Tensor, use_cache: bool) -> Any:
        attend = torch.ones(1, *2 * input_ids.shape[1:], dtype=torch.bool).tril()
        with torch.no_grad():
            hidden = model.transformer(input_ids, attend=attend)
            return SimpleNamespace(logits=model.transformer.head(hidden))

    written: Any = written_alone
    banned = (model.mask_id, *model.banned_ids)
    return written(causally, prompt, gen_length=12, stops=model.eos_ids, banned=banned)


@dataclass(frozen=True)
class Knowing(Drafting):
    """Drafts trees of what the target will write, with a wrong sibling at every depth.

    Every third right token is left out, so that drafts are accepted in part.
    """

    answers: tuple[tuple[int, ...], ...]

    def draft(self, start: DraftStart, logits: Tensor, lengths: Tensor) -> Draft:
        tokens, counts, parents = [], [], []
        keys = row_keys(0, torch.arange(len(self.answers))).tolist()
        firsts = (start.first_unsettled - start.canvas.prompt_lengths).tolist()
        for key, first, length in zip(
            start.noise_keys.tolist(), firsts, lengths.tolist(), strict=True
        ):
            right = self.answers[keys.index(key)][first : first + min(length, 1 + first % 3)]
            # Nodes 2d and 2d + 1 are of depth d; the wrong one comes first.
            words = [word for token in right for word in ((token + 1) % 500, token)]
            tokens.append(words + [0] * (6 - len(words)))
            parents.append([-1, -1, 1, 1, 3, 3])
            counts.append(len(words))
        return Draft(torch.tensor(tokens), torch.tensor(counts), parents=torch.tensor(parents))


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("family", CAUSAL_TOO)
def test_the_answer_is_the_models_own_causal_answer(family: str) -> None:
    model = load_tiny(family, dtype=torch.float64)
    # An answer that ends early, for one row at least.
    model.eos_ids = (alone(model, PROMPTS[0])[5],)
    answers = [alone(model, prompt) for prompt in PROMPTS]
    assert len({token for answer in answers for token in answer}) > 6, "it says one thing only"
    target = as_causal_target(model)
    plain = ARVerify(target, DraftLength(2, 6))
    knowing = replace(plain, drafting=Knowing(tuple(map(tuple, answers))))
    tree = replace(plain, drafting=Tree(8))
    for verifier, cache in ((plain, NoCache()), (knowing, NoCache()), (tree, FreeCache())):
        out = decode(
            model, PROMPTS, ConfidenceThreshold(0.9), cache=cache, verifier=verifier, gen_length=12,
            block_length=4,
        )  # fmt: skip
        assert out.tokens.tolist() == answers
        if verifier is knowing:
            # Drafts are accepted by way of the tree's second children.
            assert out.accepted.sum() >= 12
            assert out.target_forwards < 6


@pytest.mark.parametrize("case", [0, 1])
def test_what_the_authors_self_speculation_writes_is_written(case: int) -> None:
    golden = load_file(MODELS / "nemotron_labs_diffusion" / "golden.safetensors")
    model = load_tiny("nemotron_labs_diffusion", dtype=torch.float32)
    prompt = golden[f"gen{case}.prompt"][0].tolist()
    written = golden[f"spec{case}.output"][0].tolist()
    assert written[: len(prompt)] == prompt
    answer = written[len(prompt) :]
    out = decode(
        model, [prompt], ConfidenceThreshold(0.9), verifier=ARVerify(as_causal_target(model)),
        gen_length=len(answer), block_length=len(answer),
    )  # fmt: skip
    assert out.tokens[0].tolist() == answer


def test_models_that_cannot_judge_themselves_are_refused_by_name() -> None:
    assert {key for key in EVERY_FAMILY if FAMILIES[key].is_causal_too} == set(CAUSAL_TOO)
    with pytest.raises(ValueError, match=r"\(A2D-Qwen3, .*\), got dream, whose logits under a"):
        as_causal_target(load_tiny("dream"))
    model = load_tiny("a2d_llama")
    model.transformer.route = {}
    with pytest.raises(ValueError, match="must be on one device, got a2d_llama"):
        as_causal_target(model)

"""Official decoding options against vectors of the official code, in float64."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import HashModel

from dllm_decode import (
    DualCache,
    ForwardInputs,
    NoVerifier,
    SelfVerify,
    StepEvent,
    Verifier,
    decode,
    decode_many,
)
from samplers import ConfidenceThreshold, EntropyBound, FixedSchedule, Sampler, View
from samplers.logits.summary import Summary
from samplers.logits.truncation import Truncation

VECTORS = Path(__file__).parent / "data" / "vectors"
FILTERED: dict[str, Any] = json.loads((VECTORS / "dream_filter_vectors.json").read_text())
GUIDED: dict[str, Any] = json.loads((VECTORS / "llada_cfg_eos_vectors.json").read_text())
SOUND = [case for case in GUIDED["cases"] if case["bug"] is None]


def logits_of(rows: list[list[float | None]]) -> torch.Tensor:
    filled = [[-math.inf if value is None else value for value in row] for row in rows]
    return torch.tensor(filled, dtype=torch.float64)


def test_dream_s_filters_leave_the_same_distribution() -> None:
    """Which of equal logits at the border of top-p survive depends on the sort; those are left."""
    num_rows = num_cut = 0
    for case in FILTERED["cases"]:
        truncate = Truncation(case["temperature"], case["top_p"] or 1.0, case["top_k"] or 0)
        found = truncate(logits_of(case["logits"]))
        view = View(
            tokens=torch.zeros(1, len(found), dtype=torch.long),
            computed=Summary(found[None]),
            masked=torch.ones(1, len(found), dtype=torch.bool),
            eligible=torch.ones(1, len(found), dtype=torch.bool),
            start=0,
            gen_length=len(found),
        )
        for row, tie in enumerate(case["tie_at_border"]):
            if tie:
                continue
            num_rows += 1
            num_cut += bool((found[row] == -torch.inf).any())
            expected = torch.tensor(case["probs"][row], dtype=torch.float64)
            assert torch.allclose(found[row].softmax(-1), expected, atol=1e-8), case["id"]
            assert int(view.proposal[0, row]) == case["argmax"][row]
            for statistic, name in (
                (view.confidence, "confidence"),
                (view.margin, "margin"),
                (-view.entropy, "neg_entropy"),
            ):
                # The official entropy adds 1e-10 to each probability.
                assert math.isclose(float(statistic[0, row]), case[name][row], abs_tol=1e-6)
    assert num_rows > 400
    assert num_cut > 200


@dataclass
class Table(HashModel):
    """Fixed logits: other ones where the prompt is hidden."""

    conditional: torch.Tensor = field(default_factory=lambda: torch.zeros(1))
    unconditional: torch.Tensor = field(default_factory=lambda: torch.zeros(1))

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        is_blind = (inputs.tokens[:, :1] == self.mask_id)[..., None]
        logits = torch.where(is_blind, self.unconditional, self.conditional)
        return logits.gather(1, (inputs.wanted - 1)[..., None].expand(-1, -1, self.vocab_size))


@pytest.mark.parametrize("case", SOUND, ids=lambda case: str(case["id"]))
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3)], ids=repr)
def test_llada_s_guidance_and_banned_eos(case: dict[str, Any], verifier: Verifier) -> None:
    conditional = logits_of(case["logits_cond"])
    model = Table(
        vocab_size=16,
        mask_id=15,
        eos_ids=(2,),
        conditional=conditional,
        unconditional=logits_of(case["logits_uncond"] or case["logits_cond"]),
    )
    order: list[int] = []

    def watch(event: StepEvent) -> None:
        changed = event.before.masked & ~event.after.masked
        order.extend(changed[0].nonzero().flatten().tolist())

    out = decode(
        model, [[5]], FixedSchedule(8), gen_length=8, stop_at_eos=False, verifier=verifier,
        cfg_scale=case["cfg_scale"], banned_ids=(2,) if case["logits_eos_inf"] else (),
        observers=[watch],
    )  # fmt: skip
    assert order == case["commit_order"]
    assert out.tokens[0].tolist() == case["tokens"]
    if isinstance(verifier, NoVerifier):
        assert out.forwards == (16 if case["cfg_scale"] else 8)
        assert out.nfe.tolist() == [out.forwards]


def test_the_sound_vectors_ban_and_guide() -> None:
    assert {bool(case["cfg_scale"]) for case in SOUND} == {True, False}
    assert {case["logits_eos_inf"] for case in SOUND} == {True, False}


SAMPLERS = [FixedSchedule(4), FixedSchedule(4, "entropy"), ConfidenceThreshold(0.6), EntropyBound()]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.9, "temperature": 0.7},
        {"top_k": 3, "temperature": 1.5},
        {"confidence_from": "tempered", "temperature": 0.2},
        {"cfg_scale": 0.8, "temperature": 0.5},
        {"top_p": 0.5, "cfg_scale": 0.5, "banned_ids": (3, 4)},
    ],
    ids=str,
)
def test_options_serve_batches_verification_and_many_prompts(
    sampler: Sampler, options: dict[str, Any]
) -> None:
    model = HashModel(eos_ids=(22, 7), peak=12.0)
    prompts = [[1, 2, 3], [4], [5, 6], [8, 9, 10, 11, 12]]
    common: Any = {"gen_length": 8, "block_length": 4, "seed": 3, **options}
    plain = decode(model, prompts, sampler, **common)
    verified = decode(model, prompts, sampler, verifier=SelfVerify(3), **common)
    many = list(decode_many(model, prompts, sampler, num_rows=2, **common))
    without = decode(model, prompts, sampler, gen_length=8, block_length=4, seed=3)
    assert torch.equal(plain.tokens, verified.tokens)
    assert torch.equal(plain.tokens, torch.cat([one.tokens for one in many]))
    assert not torch.equal(plain.tokens, without.tokens)
    assert not torch.isin(plain.tokens, torch.tensor(options.get("banned_ids", ()))).any()


def test_a_nucleus_of_one_token_is_greedy_whatever_the_temperature() -> None:
    options: Any = {"gen_length": 8, "block_length": 4}
    greedy = decode(HashModel(), [[1], [2, 3]], FixedSchedule(4), **options)
    for more in ({"top_k": 1}, {"top_p": 1e-9}):
        drawn = decode(
            HashModel(), [[1], [2, 3]], FixedSchedule(4, "confidence"), temperature=2.0,
            **options, **more,
        )  # fmt: skip
        # All confidences are 1, so only the order may differ: compare one position.
        first = decode(HashModel(), [[1]], FixedSchedule(1), gen_length=1, temperature=2.0, **more)
        assert (
            first.tokens[0, 0]
            == decode(HashModel(), [[1]], FixedSchedule(1), gen_length=1).tokens[0, 0]
        )
        assert drawn.tokens.shape == greedy.tokens.shape


def test_what_options_cannot_combine_with_is_refused() -> None:
    model = HashModel()
    with pytest.raises(ValueError, match=r"cfg_scale must be 0 with DualCache\("):
        decode(model, [[1]], FixedSchedule(4), cfg_scale=1.0, cache=DualCache())
    with pytest.raises(ValueError, match=r"deferred_ids must be \(\)"):
        decode(model, [[1]], FixedSchedule(4), deferred_ids=(3,))
    with pytest.raises(ValueError, match="banned_ids must be below 24"):
        decode(model, [[1]], FixedSchedule(4), banned_ids=(24,))

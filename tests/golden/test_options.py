"""Official decoding options against vectors of the official code, in float64."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from toys import HashModel, tiny_target

from dllm_decode import ForwardInputs, StepEvent, decode
from dllm_decode.caches import DualCache
from dllm_decode.verify import Guided, NoVerifier, SelfVerify, Verifier
from samplers import FixedSchedule
from samplers.logits.truncation import Truncation

VECTORS = Path(__file__).parent / "data" / "vectors"
FILTERED: dict[str, Any] = json.loads((VECTORS / "dream_filter_vectors.json").read_text())
GUIDED: dict[str, Any] = json.loads((VECTORS / "llada_cfg_eos_vectors.json").read_text())
SOUND = [case for case in GUIDED["cases"] if case["bug"] is None]


def logits_of(rows: list[list[float | None]]) -> torch.Tensor:
    filled = [[-math.inf if value is None else value for value in row] for row in rows]
    return torch.tensor(filled, dtype=torch.float64)


def test_dream_s_filters_leave_the_same_distribution() -> None:
    """The sort decides which of equal logits at the border of top-p survive, but not how many.

    Two of these have a mass of exactly top-p, where the authors keep one more.
    """
    num_rows = num_cut = num_ties = 0
    for case in FILTERED["cases"]:
        truncate = Truncation(case["temperature"], case["top_p"] or 1.0, case["top_k"] or 0)
        filtered = truncate(logits_of(case["logits"]))
        view = view_with(filtered[None])
        for row, tie in enumerate(case["tie_at_border"]):
            if tie:
                num_kept = sum(share > 0.0 for share in case["probs"][row])
                assert int((filtered[row] > -torch.inf).sum()) == num_kept
                num_ties += case["top_p_gap"][row] == 0.0
                continue
            num_rows += 1
            num_cut += bool((filtered[row] == -torch.inf).any())
            expected = torch.tensor(case["probs"][row], dtype=torch.float64)
            assert torch.allclose(filtered[row].softmax(-1), expected, atol=1e-8), case["id"]
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
    assert num_ties == 2


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
    """Deferred ids are those of recorded runs, in test_traces.py."""
    model = Table(
        vocab_size=16, mask_id=15, eos_ids=(2,), conditional=logits_of(case["logits_cond"]),
        unconditional=logits_of(case["logits_uncond"] or case["logits_cond"]),
    )  # fmt: skip
    events: list[StepEvent] = []
    out = decode(
        model, [[5]], FixedSchedule(8), gen_length=8, stop_at_eos=False, verifier=verifier,
        cfg_scale=case["cfg_scale"], banned_ids=(2,) if case["logits_eos_inf"] else (),
        observers=[events.append],
    )  # fmt: skip
    changed = [event.before.masked & ~event.after.masked for event in events]
    # The prompt is one token long.
    assert [int(step[0].nonzero()) - 1 for step in changed] == case["commit_order"]
    assert out.tokens[0].tolist() == case["tokens"]
    if isinstance(verifier, NoVerifier):
        assert out.forwards == (16 if case["cfg_scale"] else 8)
        assert out.nfe.tolist() == [out.forwards]


def test_what_options_cannot_combine_with_is_refused() -> None:
    model = HashModel()
    with pytest.raises(ValueError, match=r"cfg_scale must be 0 with DualCache\("):
        decode(model, [[1]], FixedSchedule(4), cfg_scale=1.0, cache=DualCache())
    with pytest.raises(ValueError, match="deferred_ids must be below 24"):
        decode(model, [[1]], FixedSchedule(4), deferred_ids=(3, 24))
    for options in ({"deferred_ids": (3,)}, {"cfg_scale": 1.0}):
        with pytest.raises(ValueError, match=r"deferred_ids must be left out with Guided\("):
            decode(model, [[1]], FixedSchedule(4), verifier=Guided(tiny_target()), **options)
    with pytest.raises(ValueError, match="banned_ids must be below 24"):
        decode(model, [[1]], FixedSchedule(4), banned_ids=(24,))

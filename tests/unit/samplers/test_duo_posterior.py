"""Duo's posterior: numbers computed from its description, and answers of a uniform-state model."""

import json
from typing import Any

import pytest
import torch
from tiny_models import GEMMA, tiny_gemma

from dllm_decode import FreeCache, StepEvent, decode
from samplers import DuoPosterior
from samplers.duo_posterior import posterior

VECTORS: dict[str, Any] = json.loads((GEMMA.parent / "duo_vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=str)
def test_the_posterior_is_the_computed_one(case: dict[str, Any]) -> None:
    belief = torch.tensor(case["belief"], dtype=torch.float64)[None, None]
    alphas = [torch.tensor([case[name]], dtype=torch.float64) for name in ("alpha_t", "alpha_s")]
    probabilities = posterior(belief, torch.tensor([[case["z_t"]]]), *alphas, case["kappa"])[0, 0]
    torch.testing.assert_close(probabilities, torch.tensor(case["q"]).double(), atol=1e-6, rtol=0)
    noise = 1e-10 - (torch.tensor(case["u"], dtype=torch.float64) + 1e-10).log()
    assert int((probabilities / noise).argmax()) == case["drawn"]
    assert float(probabilities.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("grid", VECTORS["grids"], ids=lambda grid: str(grid["steps"]))
def test_the_times_are_the_computed_ones(grid: dict[str, Any]) -> None:
    rule = DuoPosterior(grid["steps"], rho=grid["rho"] or 1.0)
    assert rule.alphas().tolist() == grid["alpha"]


def test_a_canvas_takes_one_step_more_and_changes_in_each() -> None:
    canvases: list[torch.Tensor] = []

    def watch(event: StepEvent) -> None:
        canvases.append(event.after.tokens)

    out = decode(
        tiny_gemma(), [[179, 482, 152, 268, 70], [24, 153, 488]], DuoPosterior(3), gen_length=32,
        stop_at_eos=False, cache=FreeCache(), observers=[watch],
    )  # fmt: skip
    assert out.nfe.tolist() == [8, 8]
    assert len({str(canvas.tolist()) for canvas in canvases}) > 4

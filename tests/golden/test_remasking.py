"""ReMDM, RCR and PC-Sampler against recordings of the official functions.

They were run on the hash model, whose logits are the same on every machine: in float64, and in
float32 for RCR, whose code demands that. `ReMDM` draws at random, so that its chances are compared
with the distributions that the official code draws from. The file says which functions at which
commits. Seven of the ten recordings of ReMDM's loop, and seven of the eight of RCR, mask a token
again.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import HashModel

from dllm_decode import StepEvent, decode
from samplers import PC, RCR, ReMDM, ReMDMLoop, Sampler

FILE = Path(__file__).parent / "data" / "vectors" / "remasking_vectors.json"
VECTORS: dict[str, Any] = json.loads(FILE.read_text())
PROMPT: list[int] = VECTORS["prompt"]


def assert_as_recorded(sampler: Sampler, case: dict[str, Any]) -> None:
    """Compares the answer before each forward, and at the end.

    The official loop repeats a forward on the same canvas if it re-masks what it has just written.
    """
    length, inputs = case["gen_length"], list[list[int]]()

    def note(event: StepEvent) -> None:
        inputs.append(event.before.tokens[0, len(PROMPT) :].tolist()[:length])

    output = decode(
        HashModel(), [PROMPT], sampler, gen_length=length, stop_at_eos=False, observers=[note],
        block_length=case.get("block_length", length),
    )  # fmt: skip
    assert inputs == [canvas for canvas, _ in groupby(case["inputs"])]
    assert output.tokens[0].tolist() == case["tokens"]


@pytest.mark.parametrize("case", VECTORS["remdm_loop"])
def test_the_loop_of_remdm(case: dict[str, Any]) -> None:
    rule = ReMDMLoop(case["steps"], case["loop_steps"], case["num_remasked"])
    assert_as_recorded(rule, case)


@pytest.mark.parametrize("case", VECTORS["rcr"])
def test_running_confidence(case: dict[str, Any]) -> None:
    """Recorded where the official floor of a floating-point product is exact."""
    assert_as_recorded(RCR(case["steps"]), case)


@pytest.mark.parametrize("case", VECTORS["pc"])
def test_pc_sampler(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(json.dumps(VECTORS["counts"]))
    steps = case["steps"] * case["block_length"] // case["gen_length"]
    rule = PC(steps, case["decay"], case["most"], str(tmp_path / "counts.json"))
    assert_as_recorded(rule, case)


@pytest.mark.parametrize("case", VECTORS["remdm"])
def test_the_chances_of_remdm(case: dict[str, Any]) -> None:
    rule = ReMDM(case["steps"], case["strategy"], case["eta"])
    masked = torch.tensor(case["tokens"]) == case["mask_id"]
    confidence = torch.tensor(case["confidence"], dtype=torch.float64)
    doubt = (-confidence).masked_fill(masked, -torch.inf).softmax(-1).nan_to_num()
    chances = rule.chances(doubt[None])
    unmask, remask = (chance[..., case["step"]].squeeze(0) for chance in chances)
    expected = torch.tensor(case["to_mask"], dtype=torch.float64)
    mask_chances = torch.where(masked, 1.0 - unmask, remask)
    torch.testing.assert_close(mask_chances, expected, atol=1e-9, rtol=0)

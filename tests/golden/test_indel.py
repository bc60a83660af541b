"""Recorded episodes of LLaDA 2.2's decoding: tokens of the open block that delete and insert."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from safetensors.torch import load_file

from samplers import JointThresholdInDel
from samplers.calls import next_step
from samplers.testing import settled_by

FOLDER = Path(__file__).parent / "data" / "llada22"
GOLDEN = load_file(FOLDER / "golden.safetensors")
CASES = json.loads((FOLDER / "cases.json").read_text())
MASK, DELETE, SPLIT = 20, 21, 22


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
@pytest.mark.parametrize("rule", ["sglang", "hub"])
def test_every_step_of_a_recorded_episode_is_repeated(case: dict[str, Any], rule: Any) -> None:
    options = case["options"]
    sampler = JointThresholdInDel(
        options["threshold"], options["edit_threshold"], options["max_post_steps"], DELETE, SPLIT,
        rule=rule, steps=case["steps"],
    )  # fmt: skip
    blocks, table = (GOLDEN[f"{case['case']}.{name}"] for name in (f"{rule}.blocks", "logits"))
    tokens, state = blocks[:1], None
    is_open = torch.arange(blocks.shape[1])[None] >= case["prompt"]
    for step, logits in enumerate(table):
        logits = logits[None].index_fill(-1, torch.tensor([MASK]), -torch.inf)
        view = view_with(logits, tokens=tokens, masked=tokens == MASK, eligible=is_open)
        state = sampler.init(view) if state is None else state
        decision, state = next_step(sampler, view, state)
        tokens = torch.where(decision.commit, decision.tokens, tokens)
        tokens = tokens.masked_fill(decision.remask, MASK)
        # A step of SGLang that writes nothing is not recorded.
        assert torch.equal(tokens[0], blocks[min(step + 1, len(blocks) - 1)]), step
        if settled_by(decision).any():
            break
    is_unrecorded = rule == "sglang" and case["sglang_ends"] == "stable"
    assert step + 1 == len(blocks) - 1 + is_unrecorded
    assert torch.equal(settled_by(decision), is_open)

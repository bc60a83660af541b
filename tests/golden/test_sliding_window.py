"""Every step of the official code of DCD and of DSB: one schedule reproduces both.

The files say which code at which commit they were recorded from. One run of DCD decodes two prompts
with one window for both, so that each depends on the other; the same prompts alone are compared.
Runs on a block-causal model whose block is made longer are not offered.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_models import recorded_model

from dllm_decode import StepEvent, decode
from dllm_decode.blocks import SlidingWindow
from samplers import ConfidenceThreshold, Factor, Sampler

DATA = Path(__file__).parent / "data" / "sliding_window"
NUM_RUNS = {"dcd": 17, "dsb": 18, "dcd_causal": 3}


class Step(NamedTuple):
    """One forward: the masks before it, which of them are open, and the tokens that it wrote.

    The tokens after a committed EOS become EOS at once, those that were committed before included.
    """

    masks: list[int]
    open: list[int]
    written: dict[int, int]


def compared(method: str) -> list[dict[str, Any]]:
    runs = json.loads((DATA / f"{method}.json").read_text(encoding="utf-8"))["runs"]
    return [
        run for run in runs
        if not run.get("official_bug") and "expansion_max" not in run["params"]
    ]  # fmt: skip


def schedule_of(method: str, run: dict[str, Any]) -> SlidingWindow:
    params = run["params"]
    if method == "dcd_causal":
        return SlidingWindow(params["window"], within="block", block_length=run["block_length"])
    if method == "dcd":
        return SlidingWindow(params["window"], params["max_window"])
    most = params["max_block_length"]
    return SlidingWindow(params["block_length"], most if most > 0 else run["gen_length"])


def sampler_of(params: dict[str, Any]) -> Sampler:
    if params.get("factor") is None:
        return ConfidenceThreshold(params["threshold"])
    return Factor(params["factor"], variant="official")


def decoded(method: str, runs: list[dict[str, Any]]) -> tuple[list[list[Step]], list[list[int]]]:
    """Returns the steps and the answers of runs that differ in their prompts."""
    run, steps = runs[0], [list[Step]() for _ in runs]
    prompts, eos_id = [run["prompt"] for run in runs], run["params"].get("eos_id")

    def watch(event: StepEvent) -> None:
        for n, (index, row) in enumerate(
            zip(event.request_indices.tolist(), event.rows, strict=True)
        ):
            before, after, first = event.before.tokens[n], event.after.tokens[n], row.prompt_length
            masks = event.before.masked[n].nonzero().squeeze(-1)
            is_open = (masks >= row.opening.start) & (masks < row.opening.stop)
            columns = (before != after).nonzero().squeeze(-1).tolist()
            written = {column - first: int(after[column]) for column in columns}
            step = Step((masks - first).tolist(), (masks[is_open] - first).tolist(), written)
            steps[index].append(step)

    family = "fast_dllm_v2" if method == "dcd_causal" else "llada"
    out = decode(
        recorded_model(family, run.get("block_length", 0), eos_id, dtype=torch.float64), prompts,
        sampler_of(run["params"]),
        blocks=schedule_of(method, run), gen_length=run["gen_length"],
        stop_at_eos=eos_id is not None, truncate_at_eos=eos_id is not None, observers=[watch],
    )  # fmt: skip
    return steps, out.tokens.tolist()


@pytest.mark.parametrize("method", NUM_RUNS)
def test_every_step_of_the_official_code_is_reproduced(method: str) -> None:
    runs = compared(method)
    assert len(runs) == NUM_RUNS[method]
    settings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        settings[json.dumps([run["params"], run["gen_length"]])].append(run)
    for alike in settings.values():
        for run, steps, tokens in zip(alike, *decoded(method, alike), strict=True):
            assert tokens == run["tokens"], run["id"]
            assert_equal_steps(steps, run)


def assert_equal_steps(steps: list[Step], run: dict[str, Any]) -> None:
    assert len(steps) == run["forwards"], run["id"]
    for ours, theirs in zip(steps, run["steps"], strict=True):
        written = dict(zip(theirs["positions"], theirs["tokens"], strict=True))
        written |= {position: new for position, _, new in theirs.get("overwritten", [])}
        assert ours.written == written, run["id"]
        if "window" in theirs:
            start, stop = theirs["window"]
            assert ours.open == [n for n in ours.masks if start <= n < stop], run["id"]

"""Every decision of transformers' DiffusionGemma on a tiny checkpoint, with its draws injected.

`traces.json` has 38 runs of `generate`: one to three canvases, contexts longer than the sliding
window, early stops and last steps, and batches of rows that differ in length.
"""

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import tiny_gemma
from torch import Tensor

from dllm_decode import CachePolicy, FreeCache, NoCache, PrefixCache, decode
from dllm_decode.core.model import ForwardInputs
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.look_at_noise import with_random_tokens
from dllm_decode.engine.state import State
from samplers import AcceptAndRenoise, Decision, View
from samplers.accept_and_renoise import AcceptAndRenoiseState
from samplers.logits.noise import row_keys

DATA = Path(__file__).parent / "data" / "uniform_state"
RUNS: list[dict[str, Any]] = json.loads((DATA / "traces.json").read_text(encoding="utf-8"))["runs"]
MANY = [run for run in RUNS if len(run["canvases"]) > 1]
REPLAYS: list[tuple[dict[str, Any], CachePolicy]] = [
    *((run, NoCache()) for run in RUNS),
    *((run, FreeCache()) for run in MANY),
    *((run, PrefixCache()) for run in MANY[:3]),
]


@cache
def golden() -> dict[str, Tensor]:
    return load_file(DATA / "golden.safetensors")


@dataclass(frozen=True)
class Drawn(View):
    """A view whose draws are recorded ones."""

    sampled: Tensor | None = None
    renoised: Tensor | None = None

    @property
    def proposal(self) -> Tensor:  # type: ignore[override]  # cached in a View
        return self.sampled

    def random_tokens(self) -> Tensor:
        return self.renoised


class Step(NamedTuple):
    """The decision about one row in one step of a canvas."""

    accepted: list[int]
    argmax: list[int]
    after: list[int]
    is_finished: bool


Place = tuple[int, int, int]
"""Row, canvas and step."""


@dataclass(frozen=True)
class Replayed(AcceptAndRenoise):
    """The sampler with the draws of a run; it writes its steps to a log."""

    run: Any = None
    log: Any = None

    def step(
        self, view: View, state: AcceptAndRenoiseState
    ) -> tuple[Decision, AcceptAndRenoiseState]:
        places = places_of(self.run, view, state)
        draws = [self.run["canvases"][canvas]["steps"][step] for _, canvas, step in places]
        values = {field.name: getattr(view, field.name) for field in fields(View)}
        sampled, noise = (
            torch.tensor([draw[name][row] for draw, (row, _, _) in zip(draws, places, strict=True)])
            for name in ("sampled", "noise")
        )
        drawn = Drawn(**values, sampled=sampled, renoised=noise)
        decision, after = super().step(drawn, state)
        tempered = view.with_logits(after.belief)
        accepted = self.accepted(tempered).long().tolist()
        for n, place in enumerate(places):
            tokens, argmax = decision.tokens[n].tolist(), tempered.most_likely[n].tolist()
            is_finished = bool(decision.settle[n].all())
            self.log[place] = Step(accepted[n], argmax, tokens, is_finished)
        return decision, after


def places_of(run: dict[str, Any], view: View, state: AcceptAndRenoiseState) -> list[Place]:
    """Returns the row, canvas and step of each row of a view."""
    keys = row_keys(0, torch.arange(len(run["prompts"]))).tolist()
    rows = [keys.index(key) for key in view.noise_keys.tolist()]
    canvases = (view.positions[:, 0] // run["canvas_length"]).tolist()
    return list(zip(rows, canvases, state.steps.tolist(), strict=True))


def recorded(run: dict[str, Any]) -> dict[Place, Step]:
    """Returns the steps of all rows that had ended neither the canvas nor the answer."""
    steps = {}
    for number, canvas in enumerate(run["canvases"]):
        for count, step in enumerate(canvas["steps"]):
            for row, is_frozen in enumerate(step["frozen"]):
                if is_frozen or canvas["ended_before"][row]:
                    continue
                is_last = bool(step["finished"][row]) or count + 1 == len(canvas["steps"])
                after = canvas["answer"] if is_last else step["after"]
                steps[row, number, count] = Step(
                    step["accepted"][row], step["argmax"][row], after[row], is_last
                )
    return steps


def first_canvases(run: dict[str, Any]) -> Any:
    """Returns a `with_random_tokens` that writes recorded first canvases instead."""

    def drafted(decoder: Decoder, state: State) -> State:
        state = with_random_tokens(decoder, state)
        for n, row in enumerate(state.rows):
            if row.is_fresh:
                start, stop = row.opening.phase
                number = (start - row.prompt_length) // run["canvas_length"]
                initial = run["canvases"][number]["initial"][row.request.index]
                state.canvas.tokens[n, start:stop] = torch.tensor(initial)
        return state

    return drafted


def options_of(run: dict[str, Any]) -> dict[str, Any]:
    settings, length = run["settings"], run["canvas_length"]
    return {
        "gen_length": -(-settings["max_new_tokens"] // length) * length,
        "block_length": length,
        "stop_at_eos": settings["eos_token_id"] is not None,
    }


def sampler_of(run: dict[str, Any], log: dict[Place, Step]) -> Replayed:
    settings = run["settings"]
    names = ("entropy_bound", "t_min", "t_max", "stability_threshold", "confidence_threshold")
    arguments = {name: settings[name] for name in names}
    return Replayed(**arguments, num_steps=settings["max_denoising_steps"], run=run, log=log)


@pytest.mark.exhaustive(12)
@pytest.mark.parametrize(
    ("run", "cache"), REPLAYS, ids=[f"{run['name']}-{cache!r}" for run, cache in REPLAYS]
)
def test_every_decision_is_the_authors(
    run: dict[str, Any], cache: CachePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, log = tiny_gemma(), dict[Place, Step]()
    monkeypatch.setattr(model, "eos_ids", tuple(run["settings"]["eos_token_id"] or (1,)))
    monkeypatch.setattr("dllm_decode.engine.look_at_noise.with_random_tokens", first_canvases(run))
    out = decode(model, run["prompts"], sampler_of(run, log), cache=cache, **options_of(run))
    assert log == recorded(run)
    for row, answer in enumerate(out.answers()):
        committed = [token for canvas in run["canvases"] for token in canvas["committed"][row]]
        assert committed[: len(answer)] == answer


def predicted(name: str, belief: Tensor | None = None) -> Tensor:
    """Returns the logits of a recorded canvas after its prompt."""
    prompts, drafts = golden()[f"{name}.input_ids"], golden()[f"{name}.canvas"]
    mask = golden().get(f"{name}.attention_mask", torch.ones_like(prompts)).bool()
    rows = [row[is_token] for row, is_token in zip(prompts, mask, strict=True)]
    starts = torch.tensor([len(row) for row in rows])
    wanted = starts[:, None] + torch.arange(drafts.shape[1])
    tokens = torch.full((len(rows), int(wanted.max()) + 1), tiny_gemma().mask_id)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row
    tokens = tokens.scatter(1, wanted, drafts)
    positions = torch.arange(tokens.shape[1]).expand(len(rows), -1)
    return tiny_gemma().predict(ForwardInputs(tokens, positions, wanted, belief=belief))


@pytest.mark.parametrize("name", ["short", "window", "long", "ragged"])
def test_logits_are_the_authors_with_and_without_a_belief(name: str) -> None:
    expected = golden()[f"{name}.logits"]
    torch.testing.assert_close(predicted(name), expected, atol=1e-3, rtol=0)
    expected, belief = golden()[f"{name}.logits_self_conditioned"], expected / 0.7
    torch.testing.assert_close(predicted(name, belief), expected, atol=1e-3, rtol=0)

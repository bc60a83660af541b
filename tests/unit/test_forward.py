"""What a forward of drafts computes, and what is wrong with drafts."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from spied import tiny

from dllm_decode import DualCache, NoCache, Verifier, decode
from dllm_decode.core.canvas import Window
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.state import State
from dllm_decode.decoder import Decoder, Drafts, Look, Pass
from dllm_decode.forward import forward
from dllm_decode.join import join
from dllm_decode.loop import new_decoder
from dllm_decode.options import DecodeConfig
from dllm_decode.round import open_blocks
from samplers import ConfidenceThreshold
from samplers.facts import Fact


def begun() -> tuple[Decoder, State]:
    config = DecodeConfig(gen_length=8, block_length=4)
    decoder = new_decoder(tiny("llada"), ConfidenceThreshold(), config=config)
    # All rows end at one column, so that only their windows tell them apart.
    prompts = ([3, 4], [5, 6], [7, 8, 9, 10, 11, 12])
    requests = [
        decoder.request(prompt, index, gen_length=10 - len(prompt))
        for index, prompt in enumerate(prompts)
    ]
    taken = RequestQueue(requests).take(3)
    state = join(decoder, State.empty(3, decoder.model.device), taken)
    return decoder, open_blocks(decoder, state)


def test_drafts_of_other_rows_are_looked_at_in_windows_of_their_own() -> None:
    """The layout was kept although the drafts, as many as before, were of other rows."""
    decoder, state = begun()
    window = Window.of([row.open.start for row in state.rows], 4, state.here)
    found: dict[tuple[int, ...], list[Any]] = {}
    for keeps_layout in (True, False):
        for owners in ((0, 1, 2, 0), (0, 1, 2, 2)):
            drafts = Drafts(state.here.tokens[list(owners)], owners, (0, 0, 0, 1))
            state = state if keeps_layout else state._replace(layout=None)
            state, logits = forward(decoder, state, Pass(window, drafts=drafts))
            found.setdefault(owners, []).append(logits)
    for one, other in found.values():
        assert torch.equal(one, other)
    # The second state of a row has the tokens of the first.
    assert torch.allclose(found[0, 1, 2, 2][0][3], found[0, 1, 2, 2][0][2])


@dataclass(frozen=True)
class Wrong(Verifier):
    """Drafts what does not fit."""

    kind: str

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.SAMPLER_DECIDES, Fact.ONE_STEP_A_FORWARD})

    def look(self, decoder: Decoder, state: State) -> Any:
        window = Window.of([row.open.start for row in state.rows], 4, state.here)
        tokens, rows = state.here.tokens, tuple(range(len(state.rows)))
        if self.kind == "narrow":
            tokens = window.part(tokens)
        places = (1,) * len(rows) if self.kind == "place" else (0,) * len(rows)
        if self.kind == "alone":
            return Look
        return forward(decoder, state, Pass(window, drafts=Drafts(tokens, rows, places)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("narrow", "tokens of Drafts must be whole canvases"),
        ("place", "places of Drafts must be below num_branches of the verifier, 1, got 1"),
        ("alone", r"look of Wrong\(kind='alone'\) must return the pair"),
    ],
)
def test_a_wrong_look_is_named(kind: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        decode(
            tiny("llada"), [[1, 2]], ConfidenceThreshold(), cache=DualCache(),
            verifier=Wrong(kind), gen_length=8, block_length=4,
        )  # fmt: skip


def test_a_cache_of_no_policy_has_room_for_any_place() -> None:
    decoder, state = begun()
    assert isinstance(decoder.cache, NoCache)
    window = Window.of([row.open.start for row in state.rows], 4, state.here)
    drafts = Drafts(state.here.tokens[:1], (0,), (3,))
    assert forward(decoder, state, Pass(window, drafts=drafts))[1].shape[:2] == (1, 4)

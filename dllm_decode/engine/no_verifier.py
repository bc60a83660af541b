"""The verifier of plain decoding; see `dllm_decode.engine.decoder.Verifier`."""

from dataclasses import dataclass

from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder, Look, Verifier
from dllm_decode.engine.views import look
from samplers.facts import Fact


@dataclass(frozen=True)
class NoVerifier(Verifier):
    """Runs one forward a round, on which the sampler decides."""

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.SAMPLER_DECIDES, Fact.ONE_STEP_A_FORWARD, Fact.PASSES_BELIEF})

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        return look(decoder, state)

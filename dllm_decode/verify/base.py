"""The verifier that accepts what the sampler decides; the contract is in `dllm_decode.decoder`."""

from dataclasses import dataclass

from dllm_decode.core.state import State
from dllm_decode.decoder import Decoder, Look, Verifier
from dllm_decode.look import look
from samplers.facts import Fact


@dataclass(frozen=True)
class NoVerifier(Verifier):
    """Commits what the sampler decides: one forward and one step a round."""

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.SAMPLER_DECIDES, Fact.ONE_STEP_A_FORWARD})

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        return look(decoder, state)

"""The verifier of plain decoding; see `dllm_decode.engine.verifier.Verifier`."""

from dataclasses import dataclass

from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.look import look
from dllm_decode.engine.look_at_noise import look_at_noise
from dllm_decode.engine.look_without_own_token import look_without_own_token
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from samplers.facts import Fact


@dataclass(frozen=True)
class NoVerifier(Verifier):
    """Runs the one forward of a round, as a verifier must, and neither drafts nor checks tokens.

    The sampler decides one step on each forward: this is plain decoding.
    """

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({
            Fact.SAMPLER_DECIDES, Fact.ONE_STEP_A_FORWARD, Fact.LEAVE_ONE_OUT, Fact.STARTS_AS_NOISE,
            Fact.LAST_LOOK,
        })  # fmt: skip

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        if decoder.is_uniform_state:
            return look_at_noise(decoder, state)
        if Fact.LEAVE_ONE_OUT in decoder.sampler.needs:
            return look_without_own_token(decoder, state)
        return look(decoder, state)

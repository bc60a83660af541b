"""The decoder of typed reads: it looks at a whole text in one forward."""

from dataclasses import dataclass

from dllm_decode.decoder import Decoder
from dllm_decode.loop import new_decoder
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig
from dllm_decode.sizes import round_up
from samplers.base import Decision, Sampler
from samplers.facts import Fact
from samplers.view import View


@dataclass(frozen=True)
class AllAtOnce(Sampler[None]):
    """Commits every eligible position in one step."""

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.FINAL_TOKENS})

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        return Decision(commit=view.eligible), state


def reading_decoder(model: MaskPredictor, max_tokens: int) -> Decoder:
    """Returns a decoder that looks at a whole answer in one forward.

    Args:
        model: The mask predictor.
        max_tokens: Tokens of a text, at most.
    """
    length = round_up(max_tokens, model.causal_block_length or 1)
    config = DecodeConfig(gen_length=length, block_length=length, stop_at_eos=False)
    return new_decoder(model, AllAtOnce(), config=config)

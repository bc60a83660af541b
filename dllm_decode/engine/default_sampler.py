"""The sampler of a decode for which none is chosen."""

from dllm_decode.core.model import MaskPredictor, UniformState
from samplers.accept_and_renoise import AcceptAndRenoise
from samplers.base import Sampler
from samplers.confidence_threshold import ConfidenceThreshold


def default_sampler(model: MaskPredictor) -> Sampler:
    """Returns the sampler that a model is decoded with unless another one is chosen."""
    return AcceptAndRenoise() if isinstance(model, UniformState) else ConfidenceThreshold(0.9)

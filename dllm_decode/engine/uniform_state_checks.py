"""Refuses options and requests that have no meaning on a uniform-state model, by name.

A masked model passes every check.
"""

from collections.abc import Sequence

from dllm_decode.core.model import MaskPredictor, UniformState
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.sizes import round_up


def block_length_of(model: MaskPredictor, block_length: int | None, gen_length: int) -> int | None:
    """Returns `block_length`, or else the model's own if it is uniform-state.

    Raises:
        ValueError: If an answer of a uniform-state model is not a whole number of blocks.
    """
    if not isinstance(model, UniformState):
        return block_length
    length = block_length or model.block_length
    _require_whole_blocks(model, length, gen_length)
    return length


def _require_whole_blocks(model: MaskPredictor, block_length: int, gen_length: int) -> None:
    """Raises ValueError unless an answer is a whole number of blocks."""
    if gen_length % block_length:
        raise ValueError(
            f"gen_length must be a multiple of {block_length}, the block length of {model.name}, "
            f"got {gen_length}. Use {round_up(gen_length, block_length)}."
        )


def check_config(
    model: MaskPredictor,
    config: DecodeConfig,
    template: Sequence[object] = (),
    *,
    return_logprobs: bool = False,
) -> None:
    """Raises ValueError if an option or a template cannot serve a uniform-state model."""
    if not isinstance(model, UniformState):
        return
    is_set = {
        "temperature": config.temperature,
        "top_p, top_k and confidence_from": config.is_tempered,
        "cfg_scale": config.cfg_scale,
        "deferred_ids": config.deferred_ids,
        "truncate_at_eos": config.truncate_at_eos,
        "templates": template,
        "return_logprobs": return_logprobs,
    }
    reasons = {
        "temperature": "The sampler has temperatures of its own, such as "
        "AcceptAndRenoise(t_min=0.4, t_max=0.8).",
        "cfg_scale": "Guidance needs a [MASK].",
        "templates": "A template needs a [MASK].",
    }
    for name, value in is_set.items():
        if value:
            reason = reasons.get(name, "Each step draws all tokens of a block anew.")
            raise ValueError(
                f"{name} must be left out with {model.name}, a uniform-state model. {reason}"
            )


def check_request(
    model: MaskPredictor,
    prompt: Sequence[int],
    config: DecodeConfig,
    template: Sequence[int],
    block_length: int,
) -> None:
    """Raises ValueError if a request has no meaning on a uniform-state model."""
    if not isinstance(model, UniformState):
        return
    _require_whole_blocks(model, block_length, config.gen_length)
    check_config(model, config, template)
    image_ids = [token for token in model.unread_ids if token in prompt]
    if image_ids:
        raise ValueError(
            f"A prompt must be text alone with {model.name}, got token {image_ids[0]} of an image. "
            "Leave images out."
        )

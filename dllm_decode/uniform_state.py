"""Options that have no meaning on a uniform-state model, refused by name."""

from collections.abc import Iterable, Sequence

from dllm_decode.options import DecodeConfig
from dllm_decode.sizes import round_up


def check_canvases(gen_length: int, canvas_length: int, *, model: str) -> None:
    """Raises ValueError unless an answer is a whole number of canvases."""
    if gen_length % canvas_length:
        raise ValueError(
            f"gen_length must be a multiple of {canvas_length}, the tokens of a canvas of {model}, "
            f"got {gen_length}. Use {round_up(gen_length, canvas_length)}."
        )


def check_readable(prompt: Iterable[int], unread_ids: tuple[int, ...], *, model: str) -> None:
    """Raises ValueError if a prompt has a token that the model does not read, as of an image."""
    found = [token for token in unread_ids if token in prompt]
    if found:
        raise ValueError(
            f"A prompt must be text alone with {model}, got token {found[0]} of an image. Leave "
            "images out."
        )


def check_uniform_state(config: DecodeConfig, template: Sequence[int] = (), *, model: str) -> None:
    """Raises ValueError if an option or a template cannot serve a uniform-state model."""
    is_set = {
        "temperature": config.temperature,
        "top_p, top_k and confidence_from": config.is_tempered,
        "cfg_scale": config.cfg_scale,
        "deferred_ids": config.deferred_ids,
        "truncate_at_eos": config.truncate_at_eos,
        "templates": template,
    }
    reasons = {
        "temperature": "The sampler has temperatures of its own, such as "
        "AcceptAndRenoise(t_min=0.4, t_max=0.8).",
        "cfg_scale": "Guidance needs a [MASK].",
        "templates": "A template needs a [MASK].",
    }
    for name, value in is_set.items():
        if value:
            because = reasons.get(name, "Each step draws all tokens of a canvas anew.")
            raise ValueError(
                f"{name} must be left out with {model}, a uniform-state model. {because}"
            )

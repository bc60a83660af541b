"""Refuses requests whose answers cannot be, or will not be, one of their constraint's texts."""

from dllm_decode.core.automaton import EOS_CLASS, Automaton
from dllm_decode.core.model import MaskPredictor, UniformState
from dllm_decode.core.requests import Request
from samplers.base import Sampler
from samplers.checks import shown
from samplers.facts import Fact, PlugIn


def check_constraint(
    request: Request,
    model: MaskPredictor,
    sampler: Sampler,
    verifier: PlugIn,
    *,
    eos_ids: tuple[int, ...],
) -> None:
    """Raises ValueError unless the answer to a request can be, and will be, one of the texts.

    Args:
        request: The request, with its constraint.
        model: The model that answers.
        sampler: The sampler of the decode.
        verifier: The verifier of the decode, of which only the facts are read.
        eos_ids: Tokens that end an answer.
    """
    constraint: object = request.constraint
    if not isinstance(constraint, Automaton):
        raise ValueError(
            "constraint must be an Automaton, as compile_constraint(constraint, "
            f"read_vocabulary(...)) returns it, got {shown(constraint)}. `generate` takes "
            "constraints as they are."
        )
    classes = constraint.classes
    ends = [token < len(classes) and int(classes[token]) == EOS_CLASS for token in eos_ids]
    if len(classes) != model.vocab_size or not all(ends):
        raise ValueError(
            f"constraint must be compiled for the tokens of {model.name}, {model.vocab_size} with "
            f"EOS {eos_ids}, got one for {len(classes)}."
        )
    needs = [(verifier, Fact.SAMPLER_DECIDES)]
    # A canvas of noise is settled at once, so that only its last tokens have to be a text.
    if not isinstance(model, UniformState):
        needs.insert(0, (sampler, Fact.FINAL_TOKENS))
    for plugin, fact in needs:
        if fact not in plugin.gives:
            raise ValueError(
                f"constraint needs {fact.sentence}, got {plugin!r}. Use {fact.remedy}, or leave "
                "constraint out."
            )
    least = constraint.least_length(request.template, model.mask_id)
    if least is None:
        raise ValueError("constraint must have a text that agrees with the template, got none.")
    if least > request.config.gen_length:
        raise ValueError(
            f"gen_length must be at least {least}, the tokens of the shortest answer that the "
            f"constraint allows, got {request.config.gen_length}."
        )

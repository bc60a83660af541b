"""Chats as token ids, through the model's own chat template."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateError, meta

from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.request_parts import Turn
from dllm_decode.serve.service import Service

# Marks the model's own words for training; only transformers knows the tag.
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
# Functions that transformers gives to templates.
_FUNCTIONS = ("raise_exception", "strftime_now")


def chat_ids(
    service: Service,
    messages: Sequence[Turn],
    *,
    tools: Sequence[dict[str, Any]],
    arguments: Mapping[str, Mapping[str, Any]],
) -> list[int]:
    """Returns the token ids of a chat, in the model's own template.

    Args:
        service: The model.
        messages: The turns.
        tools: Tools that the template must write into the text.
        arguments: For each field of the request, the template variables that the field sets.

    Raises:
        RefusedError: If the model has no template, or the template refuses the turns, ignores the
            tools, or has no such variable.
    """
    if service.tokenizer.chat_template is None:
        message = "This model has no chat template. Use /v1/completions."
        raise RefusedError(400, message, param="messages")
    values: dict[str, Any] = {}
    for param, variables in arguments.items():
        _check_variables(service.tokenizer, param, variables, bool(tools))
        values |= variables
    text = _render(service, messages, tools, values)
    if tools and text == _render(service, messages, (), values):
        message = "The chat template of this model ignores tools; leave them out."
        raise RefusedError(400, message, param="tools", code="unsupported_parameter")
    # The template writes the special tokens itself.
    return service.ids(text)


def _variables_of(tokenizer: Any, *, has_tools: bool = False) -> set[str]:
    """Returns the variables of a tokenizer's chat template that a request may set.

    Not included are the chat itself, special tokens, functions, and arguments of transformers.
    """
    template = tokenizer.get_chat_template(tools=[{}] if has_tools else None)
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    parsed = environment.parse(_GENERATION.sub("", template))
    reserved = {"messages", *environment.globals, *_FUNCTIONS, *tokenizer.special_tokens_map}
    reserved |= set(inspect.signature(tokenizer.apply_chat_template).parameters)
    return meta.find_undeclared_variables(parsed) - reserved


def _check_variables(
    tokenizer: Any, param: str, variables: Mapping[str, Any], has_tools: bool
) -> None:
    allowed = _variables_of(tokenizer, has_tools=has_tools) if variables else set()
    for name in variables:
        if name not in allowed:
            listed = ", ".join(sorted(allowed)) or "none"
            message = (
                f"{name!r} must be a variable of the model's chat template that requests may set "
                f"({listed}); leave it out."
            )
            raise RefusedError(400, message, param=param, code="unsupported_parameter")


def _render(
    service: Service,
    messages: Sequence[Turn],
    tools: Sequence[dict[str, Any]],
    values: Mapping[str, Any],
) -> str:
    try:
        chat = [turn.as_dict() for turn in messages]
        for turn in chat:
            # Templates know the older name of this role.
            turn["role"] = "system" if turn["role"] == "developer" else turn["role"]
        text: str = service.tokenizer.apply_chat_template(
            chat, tools=list(tools) or None, add_generation_prompt=True, tokenize=False, **values
        )
        text.encode()
    # A template may do anything with tools of an unusual shape.
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        message = f"The model's chat template refuses these messages: {error}"
        raise RefusedError(400, message, param="messages") from None
    return text

"""The forms of prompts and templates, and checks of them."""

import operator
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.options import RequestOptions
from samplers.checks import shown

Array: TypeAlias = Tensor | np.ndarray
"""A tensor of torch, or an array of numpy."""

Prompt: TypeAlias = Sequence[SupportsIndex] | Int[Tensor, " _"]
"""Token ids of one prompt."""

Prompts: TypeAlias = Sequence[Prompt | np.ndarray] | Array | Mapping[str, Any]
"""A batch of prompts: one sequence a row; a tensor or array with its `attention_mask`; or the
output of a tokenizer of transformers (`BatchEncoding`), which has both. A tensor of one axis, and a
tokenizer's output for one text, is a single prompt."""


def token_lists(
    prompts: Prompts, attention_mask: Array | Sequence[Sequence[int]] | None = None
) -> list[Prompt]:
    """Returns one sequence of token ids a row, without padding.

    Args:
        prompts: In any form.
        attention_mask: 0 at padding, on either side, 1 elsewhere; in the form of the prompts.

    Raises:
        ValueError: If padding cannot be told from tokens, or `prompts` is not a batch.
    """
    if isinstance(prompts, Mapping):
        if "input_ids" not in prompts:
            turn = " A chat is a list of turns: [turn]." if "role" in prompts else ""
            raise ValueError(f"prompts must have input_ids, got the keys {sorted(prompts)}.{turn}")
        mask = prompts.get("attention_mask")
        if mask is not None and attention_mask is not None:
            raise ValueError(
                "attention_mask must be given once, got one in prompts and another as an argument."
            )
        mask = attention_mask if mask is None else mask
        return token_lists(_with_rows(prompts["input_ids"]), _with_rows(mask))
    if isinstance(prompts, Array):
        return _rows_of(_with_rows(prompts), _with_rows(attention_mask))
    _require_rows(prompts)
    rows = [prompt.tolist() if isinstance(prompt, np.ndarray) else prompt for prompt in prompts]
    return rows if attention_mask is None else _without_padding(rows, attention_mask)


def _with_rows(values: Any) -> Any:
    """Returns prompts, or a mask, as a batch of one if they are of a single prompt."""
    if isinstance(values, Array):
        return values[None] if values.ndim == 1 else values
    is_listed = isinstance(values, Sequence) and len(values) > 0
    return [values] if is_listed and isinstance(values[0], int | np.integer) else values


def _require_rows(prompts: object) -> None:
    """Raises ValueError unless each row of a batch is a sequence of its own."""
    wanted = "prompts must be lists of token ids or a torch tensor, one prompt a row"
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise ValueError(f"{wanted}, got {shown(prompts)}.{_hint(prompts)}")
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, str | bytes | bytearray) or not isinstance(prompt, Sequence | Array):
            raise ValueError(f"{wanted}, got {shown(prompt)} in row {row}.{_hint(prompt)}")


def _hint(value: object) -> str:
    """Returns a sentence on how to pass a value that is not a prompt."""
    if isinstance(value, str):
        return " `generate` takes texts."
    return " A single prompt is a batch of one: [prompt]." if isinstance(value, int) else ""


def _without_padding(
    prompts: Sequence[Prompt], attention_mask: Sequence[Any] | Array
) -> list[Prompt]:
    """Returns the tokens of each row where its mask is 1."""
    if isinstance(attention_mask, Array):
        attention_mask = attention_mask.tolist()
    is_listed = isinstance(attention_mask, Sequence)
    if not is_listed or not all(isinstance(row, Sequence | Array) for row in attention_mask):
        raise ValueError(
            f"attention_mask must be lists of 0 and 1, one per prompt, got {shown(attention_mask)}."
        )
    if len(prompts) != len(attention_mask):
        raise ValueError(
            f"attention_mask must have one row per prompt, {len(prompts)}, "
            f"got {len(attention_mask)}."
        )
    unpadded: list[Prompt] = []
    for row, (prompt, mask) in enumerate(zip(prompts, attention_mask, strict=True)):
        if len(prompt) != len(mask):
            raise ValueError(
                f"attention_mask must be as long as its prompt, {len(prompt)} tokens, "
                f"got {len(mask)} in row {row}."
            )
        odd = [value for value in mask if value not in (0, 1)]
        if odd:
            raise ValueError(
                f"attention_mask must be 0 at padding and 1 elsewhere, got {shown(odd[0])} in row "
                f"{row}."
            )
        unpadded.append([token for token, is_read in zip(prompt, mask, strict=True) if is_read])
    return unpadded


def _rows_of(
    prompts: Array, attention_mask: Array | Sequence[Sequence[int]] | None
) -> list[Prompt]:
    ids = torch.as_tensor(prompts)
    if ids.ndim != 2:
        raise ValueError(
            f"prompts must be a tensor of two axes, rows and tokens, or of one, got the shape "
            f"{tuple(ids.shape)}."
        )
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"Token ids must be integers, got a tensor of {ids.dtype}.")
    rows: list[Prompt] = ids.tolist()
    if attention_mask is not None:
        return _without_padding(rows, attention_mask)
    if len(rows) > 1:
        raise ValueError(
            "attention_mask must be given with a tensor of several prompts, so that padding is "
            "not read; pass the tokenizer's whole output."
        )
    return rows


def read_prompt(prompt: Prompt, model: MaskPredictor, gen_length: int) -> list[int]:
    """Returns a prompt's token ids as integers.

    Raises:
        ValueError: If the prompt is empty, contains the mask id or a value that is not a token id
            of the model, or leaves no room for the answer.
    """
    tokens = token_ids(prompt, model)
    if not tokens:
        raise ValueError(
            "A prompt must have at least one token, got an empty one; start it with the "
            "tokenizer's beginning-of-text token."
        )
    if model.mask_id in tokens:
        raise ValueError(
            f"A prompt must not contain the mask id {model.mask_id}. To fill in between given "
            "words, pass the text to generate as templates=, with blanks such as [MASK:5]; decode "
            "takes token ids as templates=."
        )
    limit = model.max_length
    if limit is not None and len(tokens) + gen_length > limit:
        raise ValueError(
            f"Prompt and answer must have at most {limit} tokens together for {model.name}, got "
            f"{len(tokens)} and gen_length={gen_length}."
        )
    return tokens


def read_template(template: Sequence[int], model: MaskPredictor, gen_length: int) -> list[int]:
    """Returns a template's token ids as integers.

    Raises:
        ValueError: If a value is not a token id of the model, or there are more than `gen_length`.
    """
    tokens = token_ids(template, model)
    if len(tokens) > gen_length:
        raise ValueError(
            f"A template must have at most gen_length={gen_length} tokens, got {len(tokens)}."
        )
    return tokens


def filling_options(template: Sequence[int], given: RequestOptions) -> RequestOptions:
    """Returns the options of a request that fills a template as a whole, with those given.

    Raises:
        ValueError: If the answer's length or `stop_at_eos` is given.
    """
    if given.get("gen_length") is not None or given.get("stop_at_eos"):
        raise ValueError(
            "gen_length and stop_at_eos must be left out with a template, which is filled as a "
            "whole. End it with blanks such as [MASK:32] to let the model go on."
        )
    return {**given, "gen_length": len(template), "stop_at_eos": False}


def token_ids(given: Iterable[Any], model: MaskPredictor) -> list[int]:
    """Returns token ids as integers; raises ValueError if a value is no token of the model."""
    if isinstance(given, bytes | bytearray):
        raise ValueError(f"Token ids must be integers, got {shown(given)}.")
    if not isinstance(given, Iterable):
        raise ValueError(f"Token ids must be in a list, got {shown(given)}.")
    tokens = []
    for token in given.tolist() if isinstance(given, Tensor) else given:
        try:
            tokens.append(operator.index(token))
        except TypeError:
            raise ValueError(f"Token ids must be integers, got {shown(token)}.") from None
        if isinstance(token, bool):
            raise ValueError(f"Token ids must be integers, got {token}, which is a truth value.")
    wrong = [token for token in tokens if not 0 <= token < model.vocab_size]
    if wrong:
        raise ValueError(
            f"Token ids must be in [0, {model.vocab_size}) for {model.name}, got {wrong[0]}."
        )
    return tokens


def require_templates(templates: object) -> None:
    """Raises ValueError unless templates are an iterable."""
    if not isinstance(templates, Iterable):
        raise ValueError(
            f"templates must be a list of answers, one per prompt, got {shown(templates)}."
        )


def require_one_each(num_answers: int, **lists: object) -> None:
    """Raises ValueError unless each list of a length is empty, or has one entry for each answer."""
    for name, values in lists.items():
        if isinstance(values, Sized) and len(values) not in (0, num_answers):
            raise ValueError(
                f"{name} must hold one for each of {num_answers} answers, got {len(values)}."
            )

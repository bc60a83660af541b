"""Requests of many prompts, with their templates and constraints."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import repeat, zip_longest
from typing import TypeAlias

from dllm_decode.core.language import Automaton
from dllm_decode.core.options import RequestOptions
from dllm_decode.core.prompts import Prompt, filling_options
from dllm_decode.core.rows import Request
from dllm_decode.core.stopping import StopRule
from dllm_decode.engine.decoder import Decoder

Constraining: TypeAlias = Automaton | Sequence[Automaton | None] | None
"""The texts of which answers must be one: the same for all prompts, or those of each."""


def require_constraints(constraint: object, num_prompts: int, *, least: bool = False) -> None:
    """Raises ValueError unless a list has one constraint a prompt; `least` also allows more."""
    if not isinstance(constraint, Sequence):
        return
    if len(constraint) < num_prompts or (not least and len(constraint) > num_prompts):
        raise ValueError(
            f"constraint must hold one for each of {num_prompts} prompts, got {len(constraint)}."
        )


def requests_of(
    decoder: Decoder,
    prompts: Iterable[Prompt],
    templates: Iterable[Sequence[int]],
    stop: StopRule,
    *,
    constraint: Constraining = None,
    fills_blanks: bool = False,
) -> Iterator[Request]:
    """Yields a request for each prompt, with its template and constraint if there are any.

    With `fills_blanks` an answer is as long as its template, and goes on after an EOS.

    Raises:
        ValueError: If a prompt, template or constraint cannot be decoded, or one is missing.
    """
    constraints = iter(constraint) if isinstance(constraint, Sequence) else repeat(constraint)
    has_templates = not isinstance(templates, Sized) or len(templates) > 0
    pairs = zip_longest(prompts, templates) if has_templates else zip(prompts, repeat(()))
    for row, (prompt, template) in enumerate(pairs):
        if prompt is None or template is None:
            fewer, more = ("prompts", "templates") if prompt is None else ("templates", "prompts")
            raise ValueError(
                f"templates must hold one answer per prompt, got {row} {fewer} and more {more}."
            )
        options: RequestOptions = {}
        if fills_blanks and has_templates:
            options = filling_options(template, options)
        try:
            require_constraints(constraint, row + 1, least=True)
            request = decoder.request(
                prompt, row, template=template, stop=stop, constraint=next(constraints), **options
            )
        except ValueError as error:
            raise ValueError(f"In row {row}: {error}") from None
        yield request

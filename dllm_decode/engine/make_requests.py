"""Requests of many prompts, with their templates and constraints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import zip_longest
from typing import Any, TypeAlias

from dllm_decode.core.automaton import Automaton
from dllm_decode.core.options import DecodeConfig, DecodeOptions, RequestOptions
from dllm_decode.core.prompts import Prompt, filling_options
from dllm_decode.core.requests import Request
from dllm_decode.core.stopping import StopRule
from dllm_decode.engine.decoder import Decoder
from samplers.checks import shown

Constraining: TypeAlias = Automaton | Sequence[Automaton | None] | None
"""The texts of which answers must be one: the same for all prompts, or those of each."""

# In place of a value of a list that has ended; a value may be None.
_ENDED = object()


def require_seeds(seeds: object, config: DecodeConfig, options: DecodeOptions) -> None:
    """Raises ValueError unless `seeds` is an iterable, and empty if there is a `seed` too."""
    if not isinstance(seeds, Iterable):
        raise ValueError(f"seeds must be integers, one for each answer, got {shown(seeds)}.")
    seed = options.get("seed")
    if _is_given(seeds) and (seed is not None or config.seed):
        raise ValueError(
            "seed must be left out with seeds, which hold one for each answer, got seed="
            f"{config.seed if seed is None else seed}."
        )


def requests_of(
    decoder: Decoder,
    prompts: Iterable[Prompt],
    templates: Iterable[Sequence[int]],
    stop: StopRule,
    *,
    constraint: Constraining = None,
    seeds: Iterable[int] = (),
    fills_blanks: bool = False,
) -> Iterator[Request]:
    """Yields a request for each prompt, with its template, constraint and seed if there are any.

    With `fills_blanks` an answer is as long as its template, and goes on after an EOS. With `seeds`
    the noise of a row depends on its seed alone, not on its place.

    Raises:
        ValueError: If a prompt, template, constraint or seed cannot be decoded, or one is missing.
    """
    given: dict[str, Iterable[Any]] = {"prompts": prompts}
    shared = constraint
    if isinstance(constraint, Sequence):
        given["constraint"], shared = constraint, None
    for name, values in (("templates", templates), ("seeds", seeds)):
        if _is_given(values):
            given[name] = values
    for row, values in enumerate(zip_longest(*given.values(), fillvalue=_ENDED)):
        own: dict[str, Any] = dict(zip(given, values, strict=True))
        _require_all(row, own)
        template, options = own.get("templates", ()), RequestOptions()
        if fills_blanks and "templates" in own:
            options = filling_options(template, options)
        if "seeds" in own:
            options["seed"] = own["seeds"]
        try:
            request = decoder.request(
                own["prompts"], row, noise_index=0 if "seeds" in own else None,
                template=template, stop=stop, constraint=own.get("constraint", shared), **options,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"In row {row}: {error}") from None
        yield request


def _is_given(values: Iterable[object]) -> bool:
    """Returns False for an empty list; an iterator must yield one value for each prompt."""
    return not isinstance(values, Sized) or len(values) > 0


def _require_all(row: int, values: Mapping[str, object]) -> None:
    """Raises ValueError if one of the lists that a row is made of has ended before another."""
    ended = [name for name, value in values.items() if value is _ENDED]
    if ended:
        more = next(name for name, value in values.items() if value is not _ENDED)
        name = more if ended[0] == "prompts" else ended[0]
        raise ValueError(
            f"{name} must hold one for each prompt, got {row} {ended[0]} and more {more}."
        )

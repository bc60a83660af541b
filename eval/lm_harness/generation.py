"""Turns the generation options of a harness's task into options of `decode`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_LENGTH = 256

# Options by which tasks limit the number of tokens. They change nothing here.
_ALLOWANCES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

# Values of other models' options that change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
}
_KNOWN = ("until", "do_sample", "temperature", "gen_length", *_ALLOWANCES)


@dataclass(frozen=True)
class Generation:
    """Options of one answer, which is cut before the first of the strings `until`."""

    gen_length: int
    temperature: float
    until: tuple[str, ...]

    @staticmethod
    def of(
        options: Mapping[str, Any],
        *,
        gen_length: int = DEFAULT_LENGTH,
        block_length: int,
        temperature: float | None = None,
    ) -> "Generation":
        """Reads a task's generation options.

        The answer's length in tokens is the option `gen_length`, which only a task file of the
        user's own has, otherwise the argument; it is rounded up to whole blocks. A task's
        `max_gen_toks` does not count, because the length changes the answers of a diffusion model,
        and tasks' limits were chosen for models that stop by themselves.
        `temperature` is for all answers; None takes the task's, by default 0, or 1 if the task
        samples. Raises ValueError if an option is unknown, of the wrong kind, or would have no
        effect.
        """
        for name, value in options.items():
            _check(name, value)
        length = options.get("gen_length", gen_length)
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"gen_length must be a whole number from 1, got {length!r}.")
        return Generation(
            gen_length=-(-length // block_length) * block_length,
            temperature=_temperature(options) if temperature is None else temperature,
            until=_until(options.get("until")),
        )


def _check(name: str, value: object) -> None:
    if name in _KNOWN:
        return
    if name not in _NEUTRAL:
        raise ValueError(
            f"Generation options are {', '.join((*_KNOWN, *_NEUTRAL))}, got {name}={value!r}. "
            "Take it out of the task's generation_kwargs: it would have no effect."
        )
    if value not in _NEUTRAL[name]:
        raise ValueError(
            f"Mask-diffusion decoding has no {name}, got {name}={value!r} in the generation "
            f"options; {name}={_NEUTRAL[name][0]} there says that it is to have no effect."
        )


def _temperature(options: Mapping[str, Any]) -> float:
    samples = options.get("do_sample")
    temperature = options.get("temperature", 1.0 if samples else 0.0)
    if not isinstance(temperature, int | float) or not temperature >= 0.0:
        raise ValueError(f"temperature must be a number from 0, got {temperature!r}.")
    return 0.0 if samples is False else float(temperature)


def _until(until: object) -> tuple[str, ...]:
    stops = [until] if isinstance(until, str) else [] if until is None else until
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"until must be a text or a list of texts, got {until!r}.")
    # An empty stop string would match at once and leave no answer.
    return tuple(stop for stop in stops if stop)

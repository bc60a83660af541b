"""Lists of settings from cautious to bold, by name and by text."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import StringIO
from tokenize import TokenError, TokenInfo, generate_tokens
from types import MappingProxyType

from dllm_decode.settings.plugins import KINDS, TITLES, check_plugin
from eval.runs.settings import Parts
from samplers.checks import shown

_OPENING, _CLOSING = ("(", "["), (")", "]")
_THRESHOLDS = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)

LADDERS: Mapping[str, tuple[str, ...]] = {
    "threshold": tuple(f"ConfidenceThreshold({value})" for value in _THRESHOLDS),
    "entropy": tuple(f"EntropyThreshold({value})" for value in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)),
    "factor": tuple(f"Factor({value})" for value in (0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6)),
    "steps": tuple(f"FixedSchedule({value})" for value in (16, 11, 8, 6, 4, 3, 2, 1)),
}


def rung_of(text: str, others: Mapping[str, str] = MappingProxyType({})) -> Parts:
    """Reads a setting such as `ConfidenceThreshold(0.9) + MultiBlock(32) + model=FOLDER`.

    Parts are in any order: a sampler, and optionally a cache, a verifier, a block schedule and a
    model (such as a distilled or adapted model), in quotes if its path has ' + ' in it. `others`
    has parts that the text does not name. Raises ValueError if a part is of no such kind, or two
    parts are of the same kind.
    """
    parts: dict[str, str] = {}
    for part in split_parts(text):
        kind, value = _kind_of(part)
        if kind in parts:
            raise ValueError(
                f"A setting must have one {TITLES.get(kind, kind)}, got {shown(text)}."
            )
        parts[kind] = value
    if "sampler" not in parts:
        raise ValueError(f"A setting must have a sampler, got {shown(text)}.")
    return Parts(**{**others, **parts})


def split_parts(text: str) -> list[str]:
    """Splits at the plus signs with a space on each side, outside of brackets and quotes."""
    return [part.strip() for part in _joined(text)]


def _joined(text: str) -> Iterator[str]:
    begin = depth = 0
    for token in _tokens_of(text):
        depth += (token.string in _OPENING) - (token.string in _CLOSING)
        place = token.start[1]
        # Without quotes, the path of a model may contain anything but ' + '.
        if depth <= 0 and token.string == "+" and text[place - 1 : place + 2] == " + ":
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _tokens_of(text: str) -> Iterator[TokenInfo]:
    """Yields Python's tokens up to the first error of the text."""
    with suppress(TokenError, SyntaxError):
        yield from generate_tokens(StringIO(text).readline)


def _kind_of(part: str) -> tuple[str, str]:
    if part.startswith("model="):
        path = part.removeprefix("model=")
        is_quoted = len(path) > 1 and path[0] == path[-1] and path[0] in "'\""
        return "model", path[1:-1] if is_quoted else path
    reasons = []
    for kind in KINDS:
        try:
            check_plugin(part, kind)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return kind, part
    raise ValueError(
        "A part of a setting must be a sampler, a cache, a verifier, a block schedule or "
        f"model='PATH', whose quotes a path with ' + ' needs: {reasons[0]}"
    )

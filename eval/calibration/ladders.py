"""Lists of settings from cautious to bold, by name and by text."""

from collections.abc import Mapping
from types import MappingProxyType

from dllm_decode.settings.plugins import KINDS, TITLES, canonical_plugin
from eval.runs.settings import RunParts
from samplers.checks import shown

_THRESHOLDS = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)

LADDERS: Mapping[str, tuple[str, ...]] = {
    "threshold": tuple(f"ConfidenceThreshold({value})" for value in _THRESHOLDS),
    "entropy": tuple(f"EntropyThreshold({value})" for value in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)),
    "factor": tuple(f"Factor({value})" for value in (0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6)),
    "steps": tuple(f"FixedSchedule({value})" for value in (16, 11, 8, 6, 4, 3, 2, 1)),
}


def rung_of(text: str, others: Mapping[str, str] = MappingProxyType({})) -> RunParts:
    """Reads a setting such as `ConfidenceThreshold(0.9) + MultiBlock(32) + model=FOLDER`.

    Parts are in any order: a sampler, and optionally a cache, a verifier, a block schedule and a
    model (such as a distilled or adapted model). `others` has parts that the text does not name.
    Raises ValueError if a part is of no such kind, or two parts are of the same kind.
    """
    parts: dict[str, str] = {}
    for part in text.split(" + "):
        kind, value = _kind_of(part.strip())
        if kind in parts:
            raise ValueError(
                f"A setting must have one {TITLES.get(kind, kind)}, got {shown(text)}."
            )
        parts[kind] = value
    if "sampler" not in parts:
        raise ValueError(f"A setting must have a sampler, got {shown(text)}.")
    return RunParts(**{**others, **parts})


def _kind_of(part: str) -> tuple[str, str]:
    if part.startswith("model="):
        return "model", part.removeprefix("model=")
    reasons = []
    for kind in KINDS:
        try:
            canonical_plugin(part, kind)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return kind, part
    raise ValueError(
        "A part of a setting must be a sampler, a cache, a verifier, a block schedule or "
        f"model=PATH: {reasons[0]}"
    )

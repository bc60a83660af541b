"""Which fields records and settings have, and of which type: files may be edited or damaged."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, get_origin

from eval.texts import is_utf8

Fields: TypeAlias = Mapping[str, Any]
"""By name the type of a field: a class, a union of classes, or a list or dict of them."""

NUMBER = int | float
SCORE = int | float | None

_HEAD: Fields = {
    "key": str, "settings": str, "example": str, "sampler": str, "cache": str, "verifier": str,
    "blocks": str, "git": str | None, "machine": str | None, "date": str | None,
    "error": str | None, "primary": str, "prompt": str, "target": str,
}  # fmt: skip
_FINISHED: Fields = {
    "text": str, "scores": dict[str, SCORE], "prompt_length": int, "length": int, "nfe": int,
    "query_positions": int, "target_nfe": int, "drafted": int, "accepted": int, "committed": int,
    "gains": list[int], "batch_length": int, "batch_forwards": int, "batch_target_forwards": int,
    "batch_s": NUMBER, "tokens": list[int], "warm_up": bool, "trace": dict[str, Any] | None,
}  # fmt: skip
_TRACE: Fields = {
    "steps": list[int], "confidences": list[SCORE], "lead": int,
    "revisions": list[tuple[int, int, int, SCORE, int]],
}  # fmt: skip

# Python's JSON reads any integer, NaN and infinity, none of which is ever written.
_MOST = 2**63

# What a trace may have besides.
_TOLD: Fields = {
    "runners_up": list[tuple[NUMBER, list[tuple[int, NUMBER]]] | None],
    "proposals": list[tuple[int, int, NUMBER]],
}

# Numbers that others are divided by, and numbers that may be 0.
_POSITIVE = ("nfe", "length", "batch_length", "batch_s")
_COUNTS = (
    "prompt_length", "query_positions", "target_nfe", "drafted", "accepted", "committed",
    "batch_forwards", "batch_target_forwards",
)  # fmt: skip


_MOVE = "move the line elsewhere to decode its example anew."


def require_fields(found: object, wanted: Fields, where: str) -> None:
    """Checks that an object has exactly these fields, each of its type.

    Raises:
        ValueError: If it does not; names the place and the field.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a JSON object, got {_shown(found)}.")
    unknown = sorted(found.keys() - wanted.keys())
    if unknown:
        raise ValueError(
            f"{where} must have the fields of this version, got {unknown[0]!r} besides; "
            "run anew into another folder."
        )
    _require_types(found, wanted, where, "run anew into another folder.")


def require_record(record: object, where: str) -> None:
    """Checks a record; one of an example that raised has no answer and no costs.

    Raises:
        ValueError: If a field is missing or of the wrong type; names the place and the field.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where} must be a record, got {_shown(record)}; {_MOVE}")
    _require_types(record, _HEAD, where)
    if record["error"] is not None:
        return
    _require_types(record, _FINISHED, where)
    below = [name for name in _POSITIVE if record[name] <= 0]
    below += [name for name in _COUNTS if record[name] < 0]
    if below:
        raise ValueError(
            f"{where} must have a {below[0]!r} that is not below its least, got "
            f"{record[below[0]]}; {_MOVE}"
        )
    if record["primary"] not in record["scores"]:
        raise ValueError(
            f"{where} must have the score {record['primary']!r}, got "
            f"{sorted(record['scores'])}; {_MOVE}"
        )
    if record["trace"] is not None:
        _require_trace(record, where)


def _require_trace(record: Mapping[str, Any], where: str) -> None:
    trace = record["trace"]
    told = {name: kind for name, kind in _TOLD.items() if name in trace}
    _require_types(trace, {**_TRACE, **told}, f"The trace in {_lower(where)}")
    _require_types(record, {"pieces": dict[str, str]}, where)
    lengths = {len(record["tokens"]), *(len(record["trace"][n]) for n in ("steps", "confidences"))}
    if len(lengths) > 1 or record["length"] > len(record["tokens"]):
        raise ValueError(
            f"{where} must have a step and a confidence for each token, got other numbers; {_MOVE}"
        )
    likely = [token for one in trace.get("runners_up", ()) if one for token, _ in one[1]]
    tokens = {*record["tokens"], *(revision[1] for revision in trace["revisions"]), *likely}
    missing = sorted(token for token in tokens if str(token) not in record["pieces"])
    if missing:
        raise ValueError(
            f"{where} must have a text in 'pieces' for each of its tokens, got none for "
            f"{missing[0]}; {_MOVE}"
        )


def _require_types(
    found: Mapping[str, Any], wanted: Fields, where: str, remedy: str = _MOVE
) -> None:
    for name, kind in wanted.items():
        if name not in found:
            raise ValueError(f"{where} must have a field {name!r}, got none; {remedy}")
        if not is_of(found[name], kind):
            raise ValueError(
                f"{where} must have a {name!r} of type {_named(kind)}, got {_shown(found[name])}; "
                f"{remedy}"
            )


def is_of(value: object, kind: Any) -> bool:
    """Says whether a value that was read from JSON is of a type.

    True is no number, and neither are NaN, infinity and what does not fit 64 bits. Half of a
    surrogate pair, which JSON can write, is no text. A tuple is read as a list.
    """
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (list, tuple):
        return isinstance(value, list) and _are_of(value, kind)
    if get_origin(kind) is dict:
        _, item = get_args(kind)
        return isinstance(value, dict) and all(is_of(one, item) for one in value.values())
    if get_args(kind):
        return any(is_of(value, one) for one in get_args(kind))
    return _is_plain(value, kind)


def _are_of(values: Sequence[object], kind: Any) -> bool:
    kinds = get_args(kind)
    if get_origin(kind) is list or kinds[-1] is ...:
        kinds = kinds[:1] * len(values)
    return len(kinds) == len(values) and all(map(is_of, values, kinds))


def _is_plain(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, str):
        return kind is str and is_utf8(value)
    if isinstance(value, int | float) and not abs(value) <= _MOST:
        return False
    # JSON writes 1.0 as 1 elsewhere.
    return isinstance(value, (int, float) if kind is float else kind)


def _named(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _shown(value: object) -> str:
    return f"{str(value)[:40]!r}" if isinstance(value, str) else str(value)[:40]


def _lower(where: str) -> str:
    return where[:1].lower() + where[1:]

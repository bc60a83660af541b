"""Records: a line of JSON for each example, which is appended and never changed."""

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NotRequired, Required, TypeAlias, TypedDict

from msgspec import Meta

from dllm_decode.core.files import append_text, whole_lines
from dllm_decode.settings.files import parse_json

# Numbers must fit 64 bits: Python would read greater numbers, and their sums overflow.
StoredInteger: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StoredCount: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
StoredPositive: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
StoredNumber: TypeAlias = Annotated[float, Meta(ge=-(2.0**63), le=2.0**63)]
StoredShare: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
StoredSeconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=2.0**63)]

TokenDistribution: TypeAlias = tuple[StoredNumber, list[tuple[StoredInteger, StoredNumber]]]
"""Entropy in nats, then tokens with their probabilities, the most likely first."""

_REMEDY = "move the line elsewhere to decode its example anew"


class RecordedTrace(TypedDict):
    """The trace of an answer; lists have an entry for each token of the answer.

    Attributes:
        steps: Step of each token's last commit, as in `confidences`; -1 if no round committed it.
        lead: Prompt tokens in the first block of a block-causal model.
        revisions: Position, token, step of its commit, confidence and step of its removal.
        runners_up: Other tokens that the last commit could have been.
        decided: Number of the first step, from 1, since which the result's tokens are the most
            likely ones, and the number of steps; missing in old records.
    """

    steps: list[StoredInteger]
    confidences: list[StoredNumber | None]
    lead: StoredInteger
    revisions: list[
        tuple[StoredInteger, StoredInteger, StoredInteger, StoredNumber | None, StoredInteger]
    ]
    runners_up: list[TokenDistribution | None]
    decided: NotRequired[tuple[StoredCount, StoredCount]]


class AnswerCost(TypedDict, total=False):
    """The cost of one answer, and the batch that it was part of; lengths are in tokens."""

    prompt_length: StoredCount
    length: StoredPositive
    nfe: StoredCount
    query_positions: StoredCount
    target_nfe: StoredCount
    drafted: StoredCount
    accepted: StoredCount
    batch_length: StoredPositive
    batch_forwards: StoredCount
    batch_target_forwards: StoredCount
    batch_s: StoredSeconds


class ScoredExample(AnswerCost, total=False):
    """One answer; `error` is the only field if the example raised, None otherwise.

    `pieces` has the text of every token that a trace names.
    """

    error: Required[str | None]
    text: str
    scores: dict[str, StoredShare | None]
    committed: StoredCount
    gains: list[StoredInteger]
    tokens: list[StoredInteger]
    trace: RecordedTrace | None
    pieces: dict[str, str]


class Record(ScoredExample):
    """One example under one setting; `docs/metrics.md` lists the metrics of records."""

    key: str
    settings: str
    example: str
    sampler: str
    cache: str
    verifier: str
    blocks: str
    git: str | None
    machine: str | None
    date: str | None
    primary: str
    prompt: str
    target: str
    warm_up: NotRequired[bool]


def append(path: Path, records: Iterable[Record]) -> None:
    """Appends records in one write."""
    lines = [json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records]
    append_text(path, "".join(line + "\n" for line in lines))


def read_parts(folder: Path) -> list[tuple[str, Record]]:
    """Returns the records of all processes, each key once, with file and line for messages.

    A later record of a key counts only if the earlier record is an error. Raises ValueError if a
    line other than a torn last line is damaged, or lacks a field.
    """
    by_key: dict[str, tuple[str, Record]] = {}
    with _uncollected():
        for part in sorted(folder.glob("part-*.jsonl")):
            for where, record in _records_of(part):
                earlier = by_key.get(record["key"])
                if earlier is None or earlier[1]["error"] is not None:
                    by_key[record["key"]] = where, record
    return list(by_key.values())


def _records_of(path: Path) -> Iterator[tuple[str, Record]]:
    for where, line in whole_lines(path):
        record = parse_json(line, Record, where, _REMEDY)
        if record["error"] is None:
            _require_finished(record, where)
        yield where, record


@contextmanager
def _uncollected() -> Iterator[None]:
    """Stops the garbage collector, which takes most of the time with millions of new objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _require_finished(record: Record, where: str) -> None:
    """Raises ValueError if a record lacks a field, or its fields contradict each other."""
    for name in Record.__annotations__:
        if name not in record and (name != "pieces" or record["trace"]):
            raise ValueError(f"{where} must have a field {name!r}, got none; {_REMEDY}.")
    if record["primary"] not in record["scores"]:
        raise ValueError(
            f"{where} must have the score {record['primary']!r}, got "
            f"{sorted(record['scores'])}; {_REMEDY}."
        )
    if record["trace"] is not None:
        _require_trace(record, record["trace"], where)


def _require_trace(record: Record, trace: RecordedTrace, where: str) -> None:
    lengths = {len(record["tokens"]), len(trace["steps"]), len(trace["confidences"])}
    if len(lengths) > 1 or record["length"] > len(record["tokens"]):
        raise ValueError(
            f"{where} must have a step and a confidence for each token, got other numbers; "
            f"{_REMEDY}."
        )
    missing = sorted(t for t in tokens_of(record, trace) if str(t) not in record["pieces"])
    if missing:
        raise ValueError(
            f"{where} must have a text in 'pieces' for each of its tokens, got none for "
            f"{missing[0]}; {_REMEDY}."
        )


def score_of(record: Record) -> float | None:
    """Returns the primary score of a record; an error scores 0."""
    return 0.0 if record["error"] is not None else record["scores"][record["primary"]]


def trace_of(record: Record) -> RecordedTrace:
    """Returns the trace of a record, or raises ValueError if it has none."""
    trace = record.get("trace")
    if trace is None:
        raise ValueError("A replay needs records with traces; run without --no-trace.")
    return trace


def tokens_of(record: ScoredExample, trace: RecordedTrace) -> set[int]:
    """Returns every token that an answer with a trace names."""
    likely = {token for entry in trace["runners_up"] if entry for token, _ in entry[1]}
    return {*record["tokens"], *(revision[1] for revision in trace["revisions"]), *likely}

"""A page that replays how an answer was decoded: one self-contained HTML file for each example."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.reports.templates import fill
from eval.runs.lines import Record, RecordedTrace, trace_of
from eval.runs.records import Settings

Example = Sequence[tuple[Settings, Record]]
"""The records of one example, each with the settings that it was decoded under."""


def replay_page(example: Example, *, report: str = "", notice: str = "") -> str:
    """Returns the page of one example under several settings, which replay side by side.

    Tokens are tinted by the step that committed them, early ones dark. The page needs no network.

    Args:
        example: Settings and the example's records, which have traces.
        report: File of the report that the page links back to.
        notice: Shown on top, such as that the results folder is unfinished.

    Raises:
        ValueError: If there are no records, or one has no trace.
    """
    panels, (_, first) = panels_of(example), example[0]
    content = {
        "example": first["example"],
        "prompt": first["prompt"],
        "target": str(first["target"]),
        "report": report,
        "notice": notice,
        "panels": panels,
    }
    return fill("replay", title=f"{example[0][0].task} {first['example']}", content=content)


def panels_of(example: Example) -> list[dict[str, Any]]:
    """Returns, for each setting, what a replay shows: texts instead of token ids.

    Raises:
        ValueError: If there are no records, or one has no trace.
    """
    if not example:
        raise ValueError("A replay needs records with traces, got no records.")
    seeds = {settings.seed for settings, _ in example}
    return [_panel(settings, record, seeds) for settings, record in example]


def _panel(settings: Settings, record: Record, seeds: set[int]) -> dict[str, Any]:
    trace, pieces = trace_of(record), record["pieces"]
    tokens = [pieces[str(token)] for token in record["tokens"]]
    revisions = [
        {"position": p, "token": pieces[str(t)], "from": c, "confidence": q, "to": r}
        for p, t, c, q, r in trace["revisions"]
        if 0 <= p < len(tokens)
    ]
    return {
        "key": record["settings"],
        "parts": [*settings.parts, *([f"seed {settings.seed}"] if len(seeds) > 1 else [])],
        "block": settings.block_length,
        "lead": trace["lead"],
        "tokens": tokens,
        "steps": trace["steps"],
        "confidences": trace["confidences"],
        "runners_up": _runners_up(trace, pieces),
        "revisions": revisions,
        "length": record["length"],
        "nfe": record["nfe"],
        "target_nfe": record["target_nfe"],
        "score": record["scores"][record["primary"]],
    }  # fmt: skip


def _runners_up(trace: RecordedTrace, pieces: Mapping[str, str]) -> list[Any]:
    """Returns entropy and likeliest tokens by position; empty for records from before they were."""
    return [
        None if told is None else {
            "entropy": told[0],
            "tokens": [[pieces[str(token)], probability] for token, probability in told[1]],
        }
        for told in trace.get("runners_up", ())
    ]  # fmt: skip

"""Replays of how an answer was decoded: a self-contained HTML page, and a line for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from eval.reports.setting_names import PLUGINS, shortened
from eval.reports.templates import fill
from eval.runs.records import Record, TokenDistribution, trace_of
from eval.runs.settings import RunSettings

ExampleRecords = Sequence[tuple[RunSettings, Record]]
"""The records of one example, at least one, each with the settings that it was decoded under."""

# From violet to yellow in the 256 colours that terminals share.
_COLOURS = (54, 61, 67, 73, 79, 114, 149, 184, 220)


def replay_page(example: ExampleRecords, *, report: str = "", notice: str = "") -> str:
    """Returns the page of one example under several settings, which replay side by side.

    Tokens are tinted by the step that committed them, early ones dark. The page needs no network.
    It links back to the file `report`, and shows a `notice` on top, such as that the results folder
    is unfinished. Raises ValueError if a record has no trace.
    """
    panels, (settings, first) = panels_of(example), example[0]
    named = {name: first[name] for name in ("example", "prompt", "target")}
    content = {**named, "report": report, "notice": notice, "panels": panels}
    return fill("replay", title=f"{settings.task} {first['example']}", content=content)


def picture_of(record: Record) -> Text:
    """Returns a record's answer, each token coloured by the step that committed it.

    Raises ValueError if the record has no trace.
    """
    steps = trace_of(record)["steps"]
    last = max(1, *steps)
    pieces = [record["pieces"][str(token)] for token in record["tokens"][: record["length"]]]
    separator = "" if "".join(pieces).strip().startswith(record["text"].strip()) else " "
    text = Text(overflow="fold")
    for step, piece in zip(steps, pieces, strict=False):
        shade = round(step / last * (len(_COLOURS) - 1))
        style = "dim" if step < 0 else f"color({_COLOURS[shade]})"
        text.append(piece, style=style).append(separator)
    return text


def panels_of(example: ExampleRecords) -> list[dict[str, Any]]:
    """Returns the panel of each setting in a replay, with texts instead of token ids.

    Raises ValueError if a record has no trace.
    """
    named = zip(example, setting_names_of(example), strict=True)
    return [_panel(settings, record, parts) for (settings, record), parts in named]


def setting_names_of(example: ExampleRecords) -> list[list[str]]:
    """Returns the parts that name each setting; also the model and options that differ."""
    written = [settings.written() for settings, _ in example]
    differing = [
        name
        for name in written[0]
        if name not in PLUGINS and len({str(options[name]) for options in written}) > 1
    ]
    return [
        [*parts, *(f"{name} {options[name]}" for name in differing)]
        for parts, options in zip(shortened([s.parts for s, _ in example]), written, strict=True)
    ]


def _panel(settings: RunSettings, record: Record, parts: list[str]) -> dict[str, Any]:
    trace, pieces = trace_of(record), record["pieces"]
    tokens = [pieces[str(token)] for token in record["tokens"]]
    revisions = [
        {"position": p, "token": pieces[str(t)], "from": c, "confidence": q, "to": r}
        for p, t, c, q, r in trace["revisions"]
        if 0 <= p < len(tokens)
    ]
    return {
        "key": record["settings"],
        "parts": parts,
        "block": settings.config.block_length,
        **{name: trace[name] for name in ("lead", "steps", "confidences")},
        "tokens": tokens,
        "runners_up": [_runner_up(recorded, pieces) for recorded in trace["runners_up"]],
        "revisions": revisions,
        "forced": _forced(settings, record),
        **{name: record[name] for name in ("length", "nfe", "target_nfe")},
        "score": record["scores"][record["primary"]],
    }


def _forced(settings: RunSettings, record: Record) -> list[int]:
    """Returns the positions whose token a constraint forced against the model's first choice.

    Empty at a temperature above 0, where the first choice is a draw that records do not store.
    """
    if not settings.constraint or settings.config.temperature > 0.0:
        return []
    pairs = zip(record["tokens"], trace_of(record)["runners_up"], strict=False)
    return [i for i, (token, ranked) in enumerate(pairs) if ranked and ranked[1][0][0] != token]


def _runner_up(
    recorded: TokenDistribution | None, pieces: Mapping[str, str]
) -> dict[str, Any] | None:
    """Returns entropy and likeliest tokens of a position; None if no step committed a token."""
    if recorded is None:
        return None
    entropy, tokens = recorded
    return {"entropy": entropy, "tokens": [[pieces[str(token)], p] for token, p in tokens]}

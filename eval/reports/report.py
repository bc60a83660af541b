"""The report of a results folder: its numbers, its page and its replays, all offline."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dllm_decode.core.files import write_text
from dllm_decode.settings.files import digest, write_json
from eval.metrics.costs import CostMeasure
from eval.metrics.curves import ExampleSet, example_set_of, titles_of
from eval.reports.page import page_of, unfinished_notice
from eval.reports.replay import replay_page
from eval.reports.summary import FolderSummary
from eval.runs.records import Record
from eval.runs.settings import RunSettings

PAGE = "report.html"

# Characters of a file's name before a digest and a suffix; systems take 255 bytes.
_LONGEST = 200

Key = TypeVar("Key")


def write_report(
    contents: FolderSummary, *, num_replays: int = 30, cost: CostMeasure | None = None
) -> Path:
    """Writes `report.html`, `summary.json` and replay pages; returns the path of `report.html`.

    Args:
        contents: The folder, as `summarise` read it.
        num_replays: Examples of each task that get a replay page, first those on which settings
            disagree.
        cost: Cost by which settings are compared; None is `usual_cost`.
    """
    write_json(contents.folder.path / "summary.json", contents.summary)
    replays = _replays(contents, num_replays)
    page = contents.folder.path / PAGE
    write_text(page, page_of(contents, replays=replays, cost=cost))
    return page


def _replays(contents: FolderSummary, num_replays: int) -> dict[tuple[ExampleSet, str], str]:
    """Writes replay pages and returns their file names by set of examples and example id."""
    notice = unfinished_notice(contents.summary["rows"])
    example_sets = {settings: example_set_of(settings.written()) for settings in contents.results}
    titles = titles_of(example_sets.values())
    examples = defaultdict(list)
    for settings, records in contents.results.items():
        for record in records:
            if record["error"] is None and record["trace"] is not None:
                examples[example_sets[settings], record["example"]].append((settings, record))
    # Disagreements come first. The sort is stable, so it keeps the order of decoding otherwise.
    ordered = sorted(examples.items(), key=lambda item: not _disagree(item[1]))
    names = _file_names({(example_set, example): f"{titles[example_set]}\n{example}"
                         for example_set, example in examples})  # fmt: skip
    written: dict[tuple[ExampleSet, str], str] = {}
    count: Counter[ExampleSet] = Counter()
    for (example_set, example), runs in ordered:
        count[example_set] += 1
        if count[example_set] <= num_replays:
            name = f"replay-{names[example_set, example]}.html"
            write_text(contents.folder.path / name, replay_page(runs, report=PAGE, notice=notice))
            written[example_set, example] = name
    return written


def _disagree(runs: Sequence[tuple[RunSettings, Record]]) -> bool:
    return len({record["scores"][record["primary"]] for _, record in runs}) > 1


def _file_names(texts: Mapping[Key, str]) -> dict[Key, str]:
    """Returns file names, made of the texts' letters and digits.

    Long names, and names that several texts would share, end with a digest.
    """
    slugs = {
        key: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for key, text in texts.items()
    }
    count = Counter(slugs.values())
    return {
        key: slug if count[slug] == 1 and len(slug) <= _LONGEST
        else f"{slug[:_LONGEST]}-{digest(texts[key])[:8]}"
        for key, slug in slugs.items()
    }  # fmt: skip

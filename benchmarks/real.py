"""Accuracy, forwards and speed of a checkpoint next to published figures: one table for an issue.

The answers are kept in FOLDER, so that the same command goes on after a stop. The settings and the
figures are in `benchmarks/real.toml`. With --target, a causal model writes with drafts of the
checkpoint (DiffuSpec) and with drafts of its own text, and both texts must be equal.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from rich.console import Console

from benchmarks.frame import TableRow, make_parser, origin, table_of
from dllm_decode.core.files import write_text
from dllm_decode.settings.models import Loaded, load
from eval.metrics.statistics import Estimate
from eval.reports.summary import summarise
from eval.runs.folder import Folder
from eval.runs.provenance import package_commit
from eval.runs.reporter import Reporter
from eval.runs.runner import execute
from eval.runs.settings import Run, RunParts, RunSettings, named_parts, run_of
from eval.runs.task_addresses import parse_task


class PublishedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting, and the figures that were published for it.

    Attributes:
        options: Options of the decode that are not the task's.
        accuracy: The published share of right answers.
        tokens_per_s: The published speed, of one row at a time.
        source: Who published the figures, on which machine.
        same_as: Name of the line whose texts must be equal.
    """

    name: str
    task: str
    sampler: str = "FixedSchedule(32)"
    cache: str = "NoCache()"
    verifier: str = "NoVerifier()"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    accuracy: float | None = None
    tokens_per_s: float | None = None
    source: str = ""
    same_as: str = ""


PUBLISHED = msgspec.toml.decode(
    Path(__file__).with_name("real.toml").read_bytes(), type=dict[str, list[PublishedLine]]
)
"""By model the lines of its table."""

ALONE = "the target, drafts of its own text"
OPTIONS = {
    "model": ("mini", "folder, hub id or embedded name"),
    "published": ("", f"one of {', '.join(PUBLISHED)} (default: by the model's name)"),
    "target": ("", "causal model with the tokens of the checkpoint, such as mini-ar"),
    "gsm8k": ("", "folder with GSM8K's test.jsonl and train.jsonl; default: from the hub"),
    "questions": (200, "questions of each line"),
    "folder": (Path("results/real"), "where the answers and table.md are kept"),
    "device": ("cpu", "where the model runs"),
    "dtype": ("", "data type of the parameters; default: the checkpoint's"),
}


def main(words: list[str]) -> None:
    """Runs the command line."""
    options = make_parser("benchmarks real", __doc__ or "", OPTIONS).parse_args(words)
    try:
        lines = lines_of(options.published or published_for(options.model), options.target)
        model = load(options.model, device=options.device, dtype=options.dtype or None)
        runs = [run_for(line, model, options.gsm8k, options.questions) for line in lines]
        rows = rows_of(lines, runs, options.folder)
    except (ValueError, OSError) as error:
        sys.exit(f"benchmarks real: {error}")
    command = " ".join(["python -m benchmarks real", *words])
    about = {**origin(command, options.device), "dtype": model.dtype, "commit": package_commit()}
    said = "".join(f"- {name}: {value}\n" for name, value in about.items())
    text = f"{options.model}, one row at a time\n\n{table_of(rows)}\n{said}"
    write_text(options.folder / "table.md", text)
    print(text)


def published_for(model: str) -> str:
    """Returns the figures that belong to a model, by its name.

    Raises:
        ValueError: If there are none.
    """
    for name in PUBLISHED:
        if name == model or ("-" in name and name in model.lower()):
            return name
    known = ", ".join(PUBLISHED)
    raise ValueError(f"--published must be one of {known}; the name {model!r} says none of them.")


def lines_of(published: str, target: str) -> list[PublishedLine]:
    """Returns the lines of a table, with those of a target if there is one.

    Raises:
        ValueError: If no such figures are known.
    """
    if published not in PUBLISHED:
        raise ValueError(f"--published must be one of {', '.join(PUBLISHED)}, got {published!r}.")
    lines = PUBLISHED[published]
    if not target:
        return lines
    made = f"CausalTarget({target!r})"
    # The verifier asks no sampler and has no blocks, so that both are those that need no warning.
    written = PublishedLine(
        ALONE, lines[-1].task, "ConfidenceThreshold(0.9)", options={"block_length": None}
    )
    alone = f"ARVerify({made}, drafting=Pool(2, 1, 1))"
    return [
        *lines,
        structs.replace(written, verifier=alone),
        structs.replace(written, name="DiffuSpec", verifier=f"ARVerify({made})", same_as=ALONE),
    ]


def run_for(line: PublishedLine, model: Loaded, gsm8k: str, num_questions: int) -> Run:
    """Returns the run of a line: one row at a time, and without a trace, which takes time."""
    task = line.task
    if gsm8k and task.startswith("gsm8k"):
        task += f"&path={gsm8k}"
    task += f"{'&' if '?' in task else '?'}limit={num_questions}"
    parts = RunParts(line.sampler, line.cache, line.verifier)
    run = run_of(model, parse_task(task), parts, line.options)
    return replace(run, batch_size=1, trace=False)


def rows_of(lines: Sequence[PublishedLine], runs: Sequence[Run], path: Path) -> list[TableRow]:
    """Decodes the answers that a folder lacks, and returns the table."""
    settings: list[RunSettings] = []
    folder = execute(
        runs, path, reporter=Reporter(Console(stderr=True)),
        on_plan=lambda runs, others: settings.extend(planned.settings for planned in runs),
    )  # fmt: skip
    results = folder.results()
    texts = {
        line.name: {record["example"]: record.get("text") for record in results[key]}
        for line, key in zip(lines, settings, strict=True)
    }
    summary = summarise(Folder(path)).summary
    rows = {RunSettings.of(row["settings"]): row for row in summary["rows"]}
    return [row_of(line, key, rows[key], texts) for line, key in zip(lines, settings, strict=True)]


def row_of(
    line: PublishedLine,
    settings: RunSettings,
    row: TableRow,
    texts: Mapping[str, Mapping[str, str | None]],
) -> TableRow:
    """Returns a row of the table; `texts` has the answers of each line by example."""
    accuracy, speed = row["accuracy"], row.get("speed", {})
    written = named_parts(settings.sampler and line.sampler, line.cache, line.verifier)
    own, same = texts[line.name], "-"
    if line.same_as:
        pairs = [(text, texts[line.same_as].get(example)) for example, text in own.items()]
        same = f"{sum(a == b for a, b in pairs)} of {len(pairs)} as {line.same_as}"
    return {
        "line": line.name, "setting": " + ".join(written), "task": settings.task,
        "n": row["num_records"], "errors": row["num_errors"],
        "accuracy": accuracy and Estimate(*(accuracy[name] for name in ("value", "low", "high"))),
        "published": line.accuracy, "forwards": speed.get("nfe"),
        "of the target": speed.get("target_nfe"),
        "tokens": speed.get("length"), "tokens/s": row.get("timing", {}).get("tokens_per_second"),
        "published tokens/s": line.tokens_per_s, "equal texts": same, "source": line.source or "-",
    }  # fmt: skip

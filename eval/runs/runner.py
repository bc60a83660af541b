"""Runs settings over examples into a results folder; can be killed and started again."""

from collections.abc import Sequence
from pathlib import Path

from eval.runs.progress import SILENT, Reporter
from eval.runs.records import Folder
from eval.runs.settings import ALONE, Place, Run, Tokenizer
from eval.runs.worker import Worker

__all__ = ["ALONE", "Place", "Run", "Tokenizer", "execute"]


def execute(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    place: Place = ALONE,
    reporter: Reporter = SILENT,
    retry_errors: bool = False,
) -> Folder:
    """Decodes and scores what the folder lacks; the first run is the reference of the report.

    Batches are the same whatever was done before and however many processes share them, so a run
    that was killed and started again has the records of one that was not.

    Args:
        runs: What to run.
        folder: Where records go; made if need be.
        place: Which batches are this process's: every `world_size`-th.
        reporter: Follows the progress.
        retry_errors: Decode examples anew whose record is an error.

    Returns:
        The results folder.

    Raises:
        ValueError: If the folder holds records of other settings, or a setting is refused before
            any example is decoded.
    """
    for run in runs:
        run.selection.task.require_scorable()
    examples = [run.selection.examples() for run in runs]
    settings = [run.settings(some) for run, some in zip(runs, examples, strict=True)]
    results = Folder(folder)
    results.claim(settings)
    part = results.part(place.rank)
    done = {
        record["key"] for record in results.records() if record["error"] is None or not retry_errors
    }
    with reporter:
        for run, some, setting in zip(runs, examples, settings, strict=True):
            Worker(run, setting, part, reporter).work(some, done, place)
    return results

"""Decodes and reports the settings of the commands `run` and `sweep`."""

import argparse
import sys

from rich.console import Console

from dllm_decode.settings.models import open_model
from dllm_decode.settings.ranks import ProcessRank
from eval.calibration.card import warn_of_misfits
from eval.reports.terminal import report_folder
from eval.runs.folder import Folder
from eval.runs.reporter import Reporter
from eval.runs.runner import PlannedRun, execute, warn_of_runs
from eval.runs.settings import RunSettings
from eval.sweeps.sweep import Sweep


def run_sweep(sweep: Sweep, options: argparse.Namespace) -> int:
    """Decodes the answers that the results folder lacks, and reports a complete sweep.

    Checks all before the first forward. The last of several processes writes the report; other
    settings of the folder may be unfinished. Returns 1 if the report has examples that raised.
    """
    process = ProcessRank.of_launch()
    Folder(options.out).require_usable()
    settings: list[RunSettings] = []

    def tell(runs: list[PlannedRun], others: list[RunSettings]) -> None:
        settings.extend(planned.settings for planned in runs)
        if process.rank > 0:
            return
        if others:
            sys.stderr.write(
                f"The folder holds {len(others)} other settings; they stay in the report.\n"
            )
        warn_of_runs(runs)
        warn_of_misfits(sweep.samplers, settings)

    selections = sweep.selections()
    loaded = {source: open_model(source, options, sweep.revision) for source in sweep.models}
    folder = execute(
        list(sweep.runs(loaded, selections, trace=not options.no_trace)),
        options.out,
        process=process,
        reporter=Reporter(Console(stderr=True)),
        on_plan=tell,
    )
    results = folder.results()
    is_complete = all(len(results.get(s, ())) == s.num_examples for s in settings)
    return report_folder(folder) if is_complete else 0

"""The commands `run`, `sweep`, `report` and `trace`; wrong names are refused before torch loads."""

from argparse import Namespace
from pathlib import Path

from dllm_decode.settings.files import require_folder_or_new
from eval.runs.named_files import require_results, toml_of
from eval.runs.task_addresses import expand_patterns, parse_task


def run(options: Namespace) -> int:
    """Runs settings, and writes the report of a complete run."""
    for address in expand_patterns([options.task]):
        parse_task(address)
    require_folder_or_new(Path(options.out))
    from eval.reports.command import run_and_report

    return run_and_report(options)


def sweep(options: Namespace) -> int:
    """Runs a sweep, and writes the report of a complete one."""
    toml_of(options.config)
    require_folder_or_new(Path(options.out))
    from eval.reports.command import sweep_and_report

    return sweep_and_report(options)


def report(options: Namespace) -> int:
    """Writes the report of a results folder and shows its table."""
    require_results(Path(options.folder))
    from eval.reports.command import report

    return report(options)


def trace(options: Namespace) -> int:
    """Shows how one example was decoded."""
    require_results(Path(options.folder))
    from eval.reports.command import trace

    return trace(options)

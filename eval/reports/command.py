"""The commands `report` and `trace`; a wrong folder is refused before torch loads."""

from argparse import Namespace
from pathlib import Path

from eval.metrics.costs import COSTS
from eval.runs.named_files import require_results


def report(options: Namespace) -> int:
    """Writes the report of a results folder and shows its table."""
    require_results(Path(options.folder))
    from eval.reports.terminal import report_folder
    from eval.runs.folder import Folder

    cost = COSTS.get(options.cost)
    return report_folder(Folder(options.folder), num_replays=options.replays, cost=cost)


def trace(options: Namespace) -> int:
    """Shows how one example was decoded."""
    require_results(Path(options.folder))
    from eval.reports.terminal import show_example
    from eval.runs.folder import Folder

    return show_example(Folder(options.folder), options.example)

"""The command `calibrate`; a wrong task is refused before torch loads."""

from argparse import Namespace
from pathlib import Path

from dllm_decode.settings.files import require_folder_or_new
from eval.runs.task_addresses import parse_task


def run(options: Namespace) -> int:
    """Finds the fastest setting that keeps the accuracy."""
    parse_task(options.task)
    require_folder_or_new(Path(options.out))
    from eval.calibration.calibrate import calibrate

    return calibrate(options)

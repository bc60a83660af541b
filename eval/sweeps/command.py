"""The commands `run` and `sweep`; wrong names are refused before torch loads."""

from argparse import Namespace
from pathlib import Path

from dllm_decode.settings.files import require_folder_or_new
from eval.runs.named_files import toml_of
from eval.runs.task_addresses import expand_patterns, parse_task


def run(options: Namespace) -> int:
    """Runs settings, and writes the report of a complete run."""
    for address in expand_patterns([options.task]):
        parse_task(address)
    require_folder_or_new(Path(options.out))
    from eval.sweeps.run_sweep import run_sweep
    from eval.sweeps.sweep import sweep_of_options

    return run_sweep(sweep_of_options(options), options)


def sweep(options: Namespace) -> int:
    """Runs a sweep, and writes the report of a complete one."""
    toml_of(options.config)
    require_folder_or_new(Path(options.out))
    from eval.sweeps.run_sweep import run_sweep
    from eval.sweeps.sweep import sweep_of_file

    return run_sweep(sweep_of_file(options), options)

"""`python -m benchmarks`: the plain reference loop and `decode`, side by side in one run."""

import argparse
import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import Setting, run_decode, run_reference
from benchmarks.measure import Measurement, in_a_process_of_its_own

CONTENDERS = (
    "NoCache(), NoVerifier()",
    "PrefixCache(), NoVerifier()",
    "DualCache(), NoVerifier()",
    "FreeCache(), NoVerifier()",
    "DelayedCache(), NoVerifier()",
    "DualCache(), SelfVerify(4)",
)
"""Cache and verifier of each row of the table."""


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for field in dataclasses.fields(Setting):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=" ")
    parser.add_argument("--no-reference", action="store_true", help="leave out the plain loop")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = vars(parser.parse_args())
    written, no_reference = options.pop("json"), options.pop("no_reference")
    setting = Setting(**options)
    figures = {}
    if not no_reference:
        figures["plain reference loop"] = in_a_process_of_its_own(run_reference, setting)
    for name in CONTENDERS:
        figures[name] = in_a_process_of_its_own(run_decode, setting, name)
    Console(width=110).print(table_of(figures, setting))
    if written:
        rows = {name: dataclasses.asdict(figure) for name, figure in figures.items()}
        written.write_text(json.dumps({"setting": options, "figures": rows}, indent=1) + "\n")


def table_of(figures: dict[str, Measurement], setting: Setting) -> Table:
    """Lays out one row a contender; ratios are against the first."""
    first = next(iter(figures.values()))
    table = Table(title=f"{setting.num_layers} layers x {setting.hidden_size}, {setting.dtype}")
    table.add_column("contender")
    columns = (
        "s",
        "speed-up",
        "forwards",
        "columns",
        "ms/forward",
        "outside model",
        "extra MB",
        "tokens",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, figure in figures.items():
        table.add_row(
            name,
            f"{figure.wall_s:.2f}",
            f"{first.wall_s / figure.wall_s:.2f}x",
            str(figure.forwards),
            str(figure.query_positions),
            f"{1000 * figure.wall_s / figure.forwards:.1f}",
            f"{1 - figure.model_s / figure.wall_s:.1%}",
            f"{figure.extra_peak_bytes / 1e6:.0f}",
            "same" if figure.tokens == first.tokens else "differ",
        )
    table.caption = (
        f"prompt {setting.prompt_length}, answer {setting.gen_length}, blocks of "
        f"{setting.block_length}, batch {setting.batch_size}, {setting.num_threads} threads"
    )
    return table


if __name__ == "__main__":
    main()

"""Prints the names that a setting may use, such as those of samplers or tasks."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(lines: Mapping[str, str], end: str) -> None:
    """Prints names with their descriptions, then `end`, which says how to name one."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, line in lines.items():
        table.add_row(Text(name, style="bold"), Text(line))
    console = Console()
    console.print(table)
    console.print(f"\n{end}", markup=False, highlight=False)

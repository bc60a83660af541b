"""Tables on a terminal, where Markdown would wrap."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_grid(console: Console, grid: Sequence[Sequence[str]]) -> None:
    """Shows a table: first the names of its rows, numbered, then the numbers under folded heads.

    Args:
        console: Where to show the table.
        grid: The head and the rows; the first cell of a row is its name.
    """
    (_, *heads), *rows = grid
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head.replace(" ", "\n"), justify="right", no_wrap=True)
    for number, (name, *cells) in enumerate(rows, start=1):
        console.print(Text(f"{number}. {name.strip('`')}"), soft_wrap=True)
        table.add_row(f"{number}.", *cells)
    console.print(table)

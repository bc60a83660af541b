"""Tables of text cells: in Markdown, and on a terminal, where Markdown would wrap."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Grid = Sequence[Sequence[str]]
"""The head and the rows; the first cell of a row is its name."""


def markdown_of(grid: Grid) -> str:
    """Returns a table in Markdown."""
    head, *rows = ([cell.replace("|", "\\|") for cell in cells] for cells in grid)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def show_grid(console: Console, grid: Grid) -> None:
    """Shows a table: first the names of its rows, numbered, then the numbers under folded heads."""
    (_, *heads), *rows = grid
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head.replace(" ", "\n"), justify="right", no_wrap=True)
    for number, (name, *cells) in enumerate(rows, start=1):
        console.print(Text(f"{number}. {name.strip('`')}"), soft_wrap=True)
        table.add_row(f"{number}.", *cells)
    console.print(table)

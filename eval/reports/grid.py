"""Tables of text cells: in Markdown, and on a terminal, where Markdown would wrap."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Grid = Sequence[Sequence[str]]
"""The head and the rows; the first cell of a row is its name."""

_ANY_WIDTH = 1000


def markdown_of(grid: Grid, styles: Sequence[str] = ()) -> str:
    """Returns a table in Markdown; the names of rows whose style is "bold" are bold."""
    head, *rows = ([cell.replace("|", "\\|") for cell in cells] for cells in grid)
    for cells, style in zip(rows, styles, strict=False):
        cells[0] = f"**{cells[0]}**" if style == "bold" else cells[0]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def show_grid(
    console: Console, grid: Grid, *, styles: Sequence[str] = (), narrow: Sequence[int] = ()
) -> None:
    """Shows a table, in Markdown unless on a terminal.

    On a terminal it shows the names of the rows, numbered, and then the numbers under folded heads:
    only of the columns `narrow` if not all fit. `styles` has a style of rich for each row.
    """
    if not console.is_terminal:
        console.print(markdown_of(grid, styles), markup=False, soft_wrap=True)
        return
    styles = styles or [""] * (len(grid) - 1)
    for number, (cells, style) in enumerate(zip(grid[1:], styles, strict=True), start=1):
        console.print(Text(f"{number}. {cells[0].strip('`')}", style=style), soft_wrap=True)
    table = _numbers(grid, styles, range(1, len(grid[0])))
    options = console.options.update(max_width=_ANY_WIDTH)
    if narrow and console.measure(table, options=options).maximum > console.width:
        table = _numbers(grid, styles, narrow)
    console.print(table)


def _numbers(grid: Grid, styles: Sequence[str], columns: Sequence[int]) -> Table:
    heads, *rows = ([cells[column] for column in columns] for cells in grid)
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        folded = re.sub("(?<!/) (?!/)", "\n", head).replace("tokens/", "tokens/\n")
        table.add_column(folded, justify="right", no_wrap=True)
    for number, (cells, style) in enumerate(zip(rows, styles, strict=True), start=1):
        # Intervals are below their numbers.
        texts = (Text(cell.replace(" [", "\n[")) for cell in cells)
        table.add_row(f"{number}.", *texts, style=style)
    return table
